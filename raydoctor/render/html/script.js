"use strict";
(() => {
  const all = (query, from = document) => [...from.querySelectorAll(query)];

  for (const block of all("pre.code")) {
    const lines = block.textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(lines);
        button.textContent = "Copied";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(block);
        range.setStartAfter(button);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.prepend(button);
  }

  const unfold = (element) => {
    for (let each = element; each; each = each.parentElement) {
      if (each.tagName === "DETAILS") each.open = true;
    }
  };
  const go = () => unfold(document.getElementById(location.hash.slice(1)));
  addEventListener("hashchange", go);
  go();

  // On a narrow screen, a wait graph begins at what blocks all others.
  const right_of = (each) => each.getBoundingClientRect().right;
  for (const chart of all(".chart")) {
    const culprit = chart.querySelector(".box.culprit");
    if (culprit) chart.scrollLeft = Math.max(0, right_of(culprit) + 60 - right_of(chart));
  }

  // On paper, everything is open but what only a search needs, and records: the line that is quoted is enough.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open], .record, .sharing)");
    closed.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => { closed.forEach((each) => { each.open = false; }); });

  const search = document.getElementById("search");
  const field = document.getElementById("q");
  const items = all(".find").map((each) => [each, each.textContent.toLowerCase()]);
  const drawn = all(".chart g > title")
    .map((each) => [each.parentElement, each.textContent.toLowerCase()]);
  const folds = all("main details").map((each) => [each, each.open]);
  const find = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let hits = 0;
    folds.forEach(([each, open]) => { each.open = open; });
    for (const [each, text] of items) {
      const found = words.every((word) => text.includes(word));
      each.hidden = !found;
      each.classList.toggle("hit", found && words.length > 0 && !each.querySelector(".find"));
      if (each.classList.contains("hit")) {
        hits += 1;
        unfold(each);
        all("details", each).forEach((fold) => { fold.open = true; });
      }
    }
    for (const [each, text] of drawn) {
      const found = words.length > 0 && each.getClientRects().length > 0 && words.every((word) => text.includes(word));
      each.classList.toggle("hit", found);
      hits += found ? 1 : 0;
    }
    for (const each of all("main section, .chain, article h4")) {
      const part = each.tagName === "H4" ? each.nextElementSibling : each;
      const those = part ? all(".find", part) : [];
      const has_chart = part && part.querySelector(":scope > .chart");
      each.hidden = !has_chart && those.length > 0 && those.every((item) => item.hidden);
    }
    document.getElementById("hits").textContent =
      words.length ? `${hits} ${hits === 1 ? "match" : "matches"}` : "";
  };
  let timer = 0;
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(find, 120);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== field) {
      event.preventDefault();
      field.focus();
    }
  });
  search.hidden = false;
})();
