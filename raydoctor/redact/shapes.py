"""Secrets recognized by their shape: tokens with an issuer's prefix, and private keys."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate

from raydoctor.model.patterns import pattern
from raydoctor.redact.span import PLACEHOLDER, Span

_MIXED = r"(?=[\w-]{0,60}\d)(?=[\w-]{0,60}[a-z])(?=[\w-]{0,60}[A-Z])"
"""A token after a short prefix that other words have as well must be of letters in both cases and digits."""

SHAPES: Mapping[str, tuple[str, str]] = {
    "aws_key": ("AKIA ASIA ABIA ACCA", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])"),
    "gcp_key": ("AIza", r"AIza[\w-]{35}"),
    "gcp_oauth": ("ya29. 1//0 GOCSPX-", r"(?:ya29\.|1//0|GOCSPX-)[\w-]{20,}"),
    "github": (
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    ),
    "gitlab": ("gl", r"gl(?:pat|ptt|dt|rt|cbt|agent|soat|ft|imt|oas|ffct)-[\w-]{20,}"),
    "huggingface": ("hf_ api_org_", r"(?:hf_|api_org_)[A-Za-z0-9]{20,}"),
    "anthropic": ("sk-ant-", r"sk-ant-[\w-]{20,}"),
    "openai": ("sk- sess-", r"(?:sk|sess)-(?=[\w-]{0,200}\d)[\w-]{20,}"),
    "slack": ("xox xapp-", r"(?:xox[a-z](?:\.xox[a-z])?|xapp)-[A-Za-z0-9-]{10,}"),
    "slack_webhook": (
        "services/ workflows/ triggers/",
        r"(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/+-]{20,}",
    ),
    "discord_webhook": ("/webhooks/", r"(?<=/webhooks/)\d{16,20}/[\w-]{40,}"),
    "stripe": (
        "_live_ _test_ _prod_ whsec_",
        r"(?:[sr]k_(?:live|test|prod)|whsec)_[A-Za-z0-9]{16,}",
    ),
    "twilio": ("SK", r"SK[0-9a-f]{32}(?![A-Za-z0-9])"),
    "sendgrid": ("SG.", r"SG\.[\w-]{16,}\.[\w-]{16,}"),
    "npm": ("npm_", r"npm_[A-Za-z0-9]{30,}"),
    "pypi": ("pypi-", r"pypi-[\w-]{30,}"),
    "databricks": ("dapi", r"dapi[0-9a-f]{32}(?:-\d+)?"),
    "wandb": ("wandb_v1_", r"wandb_v1_\w{20,}"),
    "jwt": ("eyJ", r"eyJ[\w-]{8,1000}(?:\.[\w-]{8,}){1,4}(?:\.[\w-]*)?"),
    "vault": (
        "hvs. hvb. hvr. s. b.AAAAAQ",
        rf"hv[sbr]\.[\w-]{{20,}}|s\.{_MIXED}[A-Za-z0-9]{{24}}(?![\w.-])|b\.AAAAAQ[\w-]{{40,}}",
    ),
    "doppler": ("dp.", r"dp\.(?:st|pt|ct|sa|scim|audit)\.(?:[\w-]+\.)?[A-Za-z0-9]{30,}"),
    "age_key": ("AGE-", r"AGE-(?:SECRET-KEY|PLUGIN-[A-Z]+)-[0-9A-Z]{40,}"),
    "terraform": (".atlasv1.", r"[A-Za-z0-9]{0,14}\.atlasv1\.[\w-]{40,}"),
    "newrelic": ("NRAK- NRRA- NRII- NRJS-", r"NR(?:AK|RA|II|JS)-[A-Za-z0-9-]{20,}"),
    "nvidia": ("nvapi-", r"nvapi-[\w-]{20,}"),
    "groq": ("gsk_", r"gsk_[A-Za-z0-9]{20,}"),
    "xai": ("xai-", r"xai-[A-Za-z0-9]{20,}"),
    "perplexity": ("pplx-", r"pplx-[A-Za-z0-9]{20,}"),
    "replicate": ("r8_", r"r8_[A-Za-z0-9]{30,}"),
    "langsmith": ("lsv2_", r"lsv2_(?:pt|sk)_\w{20,}"),
    "pinecone": ("pcsk_", r"pcsk_\w{20,}"),
    "anyscale": ("esecret_ aph0_ ash0_", r"(?:esecret_|aph0_|ash0_)[\w-]{20,}"),
    "docker": ("dckr_ SWMTKN-", r"(?:dckr_pat_|dckr_oat_|SWMTKN-1-)[\w-]{20,}"),
    "grafana": ("glsa_ glc_", r"gl(?:sa|c)_[A-Za-z0-9_+/=]{30,}"),
    "digitalocean": ("_v1_", r"do[opr]_v1_[0-9a-f]{40,}"),
    "pulumi": ("pul-", r"pul-[0-9a-f]{40}"),
    "tailscale": ("tskey-", r"tskey-[\w-]{20,}"),
    "sentry": ("sntry", r"sntry[su]_[\w+/=-]{30,}"),
    "postman": ("PMAK-", r"PMAK-[0-9a-f-]{40,}"),
    "shopify": ("shp", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    "atlassian": ("ATATT3 ATCTT3 ATBB", r"AT(?:ATT3|CTT3|BB)[\w=-]{20,}"),
    "linear": ("lin_", r"lin_(?:api|oauth)_\w{30,}"),
    "supabase": ("sbp_", r"sbp_[0-9a-f]{40}"),
    "notion": ("ntn_ secret_", r"(?:ntn|secret)_[A-Za-z0-9]{40,}"),
    "telegram": (":AA", r"\d{8,10}:AA[\w-]{33}(?![\w-])"),
    "azure_key": (
        "== 7Q~ 8Q~",
        r"[A-Za-z0-9+/]{86}==(?![A-Za-z0-9=])|[\w~.-]{3}[78]Q~[\w~.-]{31,34}",
    ),
    "issued_hex": (
        "ARS_ gems_ ua_ qp_ qu_ qa_ key- IPAT_ v1.0- xkeysib- pat sk_ phx_",
        r"(?:CLOJARS|rubygems|bkua|sq[pua])_[0-9a-f]{40,}|key-[0-9a-f]{32}(?![\w-])|CCIPAT_\w{10,}|phx_\w{30,}"
        r"|v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}|xkeysib-[0-9a-f]{64}-\w{16}|pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"
        r"|sk_[0-9a-f]{48}",
    ),
    "issued_uuid": (
        "pat- sdk- mob- mws.",
        r"(?:pat-\w\w\d-|sdk-|mob-|amzn\.mws\.)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}",
    ),
    "issued_long": (
        "dt0 ZAK ZTK fm2_ fm1_ fo1_ fo2_ pscale_ pnu_ pnb_ tfp_ sq0 PAT- LTAI AKID tvly- rpa_ KCp8 oy2 napi_"
        " sb_secret_ _sa_sk_ 256~ EAAA csk- unkey_",
        r"dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}|EZ[AT]K[A-Za-z0-9]{50,}|f[mo][12]_[\w+/=-]{40,}"
        r"|pscale_(?:tkn|pw|oauth)_[\w.-]{30,}|pn[ub]_[A-Za-z0-9]{36}|tfp_[\w-]{40,}|sq0[a-z]{3}-[\w-]{22,}"
        r"|CFPAT-[\w-]{43}|LTAI[A-Za-z0-9]{16,24}(?!\w)|AKID[A-Za-z0-9]{32}(?!\w)|tvly-[\w-]{30,}|rpa_[A-Z0-9]{30,}"
        r"|AKCp8[A-Za-z0-9]{60,}|oy2[a-z0-9]{43}(?!\w)|napi_[a-z0-9]{40,}|sb_secret_[\w-]{20,}|mdb_sa_sk_[\w-]{30,}"
        r"|sha256~[\w-]{43}(?!\w)|EAAA[\w-]{60,}|csk-[a-z0-9]{40,}|unkey_[A-Za-z0-9]{20,}",
    ),
    "issued_mixed": (
        "fw_ as- ak- pa- re_",
        rf"(?:fw_|a[sk]-|re_){_MIXED}[A-Za-z0-9]{{22,}}(?![\w-])|pa-{_MIXED}[\w-]{{40,}}",
    ),
    "discord": (
        # base64 of a decimal number
        "MD MT Mj Mz ND NT Nj Nz OD OT",
        r"(?:M[DTjz]|N[DTjz]|O[DT])[\w-]{21,26}\.[\w-]{6}\.[\w-]{27,40}(?![\w.-])",
    ),
    "firebase": (":APA91b", r"[\w-]{7,30}:APA91b[\w-]{100,}"),
    "ssh_key": ("b3BlbnNzaC1rZXktdjE", r"b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=]+"),
}
"""Kind (`_` for `-`) -> texts of which each such token has one, or follows it closely; and the pattern of an
issuer's tokens, which matches none of Ray's strings."""
_MARKS = tuple(
    dict.fromkeys(mark.encode() for marks, _ in SHAPES.values() for mark in marks.split())
)
_SHORTEST = 15
"""Bytes of the shortest token (Slack's)."""
_BEFORE = 16
"""Bytes in front of a token that may contain its mark."""

_NOT_INSIDE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x00)|(?<=\\u0000))"
"""At the beginning of a word; a preceding escape is not part of the word."""


@cache
def _shapes() -> re.Pattern[bytes]:
    named = "|".join(f"(?P<{kind}>{shape})" for kind, (_, shape) in SHAPES.items())
    return re.compile(f"{_NOT_INSIDE}(?:{named})".encode())


_BEGINNING = 12
_COUNT = re.compile(r"\{(\d+)(?:,\d*)?\}(?!\d)")
_WHAT_FOLLOWS = re.compile(r"\(\?![^)]*\)$|\(\?![^)]*\)(?=\|)|\(\?=[^)]*\)")


def _at_most(count: re.Match[str]) -> str:
    return f"{{{_BEGINNING},}}" if int(count[1]) > _BEGINNING else count[0]


@cache
def _any_shape() -> re.Pattern[bytes]:
    """A cheaper pattern that accepts the beginning of every shape, as a terminal's edge may cut a token."""
    quick = {
        kind: _COUNT.sub(_at_most, _WHAT_FOLLOWS.sub("", shape))
        for kind, (_, shape) in SHAPES.items()
    }
    # The complete pattern is slow because it may begin at every third character.
    quick["jwt"] = r"eyJ[\w-]{8}"
    return re.compile("|".join(quick.values()).encode())


def within(text: bytes, parts: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """The parts (begin, end) of a text that contain a secret with a shape."""
    ordered = sorted(parts)
    begins = [max(0, begin - _BEFORE) for begin, _ in ordered]
    ends = list(accumulate([end for _, end in ordered], max))
    possible: set[int] = set()
    # A pattern of this many alternatives takes ten times as long as the search for all marks.
    without: set[bytes] = set()
    for start, piece in _pieces(text, begins, ends):
        if piece in without:  # names and paths, which most logs repeat
            continue
        before = len(possible)
        for mark in _MARKS:
            at = piece.find(mark)
            while at >= 0:
                after = bisect_right(begins, start + at)
                possible.update(range(bisect_right(ends, start + at), after))
                at = piece.find(mark, begins[after] - start) if after < len(begins) else -1
        if len(possible) == before:
            without.add(piece)
    search = _any_shape().search if possible else None
    return {ordered[number] for number in possible if search and search(text, *ordered[number])}


_NEAR = 64
"""Bytes between two parts that are searched faster than a further piece is."""


def _pieces(text: bytes, begins: list[int], ends: list[int]) -> Iterator[tuple[int, bytes]]:
    """The text of all parts with their offsets; near parts are one piece, as many parts overlap."""
    start, stop = begins[0], ends[0]
    for begin, end in zip(begins, ends, strict=True):
        if begin > stop + _NEAR:
            yield start, text[start:stop]
            start = begin
        stop = max(stop, end)
    yield start, text[start:stop]


def spans(line: bytes) -> Iterator[Span]:
    """Texts with the shape of a secret."""
    if len(line) < _SHORTEST or not within(line, [(0, len(line))]):
        return  # usually there are none, and the pattern with named groups compiles slowly
    for match in _shapes().finditer(line):
        yield Span(*match.span(), str(match.lastgroup).replace("_", "-"))


# ---------------------------------------------------------------- private keys

_KEY_BEGIN = rb"(?:-----BEGIN |^)[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_KEY_END = rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_KEY_LINES = 20
_PRIVATE_KEY = pattern(
    _KEY_BEGIN + rb"(?:(?P<body>.*?)(?P<end>" + _KEY_END + rb")|(?P<cut>[\w+/=\\:,\s-]*))",
    re.DOTALL,
)
_KEY_ENDS = pattern(_KEY_END)
_KEY_RUN = pattern(rb"(?P<s>[A-Za-z0-9+/=]{40,})")
_KEY_LAST = pattern(
    # The short last line of a body: alone on its line, or after a log prefix and unlike a word.
    rb"(?:[\s\"']*|.*[\])|m:]\s+(?=\S*[=\d]|\S*[a-z][A-Z]))"
    rb"(?P<s>[A-Za-z0-9+/]{2,76}={0,2})(?:\\[nr])*\\*[\"',]*\s*$"
)


def key_spans(line: bytes, left: int) -> tuple[list[Span], int]:
    """The body of a private key, on one line or line by line; the markers stay.

    `left`: how many more lines may belong to an unfinished key; the second result is the same for the next
    line.
    """
    found: list[Span] = []
    if left:
        ends = _KEY_ENDS.search(line)
        body = list(_KEY_RUN.finditer(line, 0, ends.start() if ends else len(line)))
        if not body and not ends and (last := _KEY_LAST.match(line)):
            body = [last]
        found += [Span(*match.span("s"), "private-key") for match in body]
        left = 0 if ends else _KEY_LINES if body else left - 1
    for match in _PRIVATE_KEY.finditer(line):
        start, end = match.span("body" if match["end"] else "cut")
        if line[start:end].strip(b"\\nr \"'") and not PLACEHOLDER.fullmatch(line, start, end):
            found.append(Span(start, end, "private-key"))
        left = 0 if match["end"] else _KEY_LINES
    return found, left
