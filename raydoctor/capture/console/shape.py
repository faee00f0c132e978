"""Undoes what terminals, log viewers and web pages did to the lines of a console.

Steps for a whole text inspect a sample of it first, and change nothing unless the sample shows the format.
"""

from __future__ import annotations

import re
from itertools import islice, pairwise

from raydoctor.capture.console import prefixes
from raydoctor.model.patterns import pattern

Numbered = tuple[int, str]
"""A line and its 1-based number in the original."""

_WRITTEN = (
    *("\ufffd", "␛", "\\x1b", "\\x1B", "\\u001b", "\\u001B", "#033", "\\033", "\\e", "^["),
    *("<ESC>", "ESC"),
)
"""The escape character as viewers and loggers write it out."""
_ESCAPES = pattern(
    r"(?:\x1b\[|\x9b)[0-9;?]{0,40}[ -/]{0,8}[@-~]"
    # `DESC[A]` is a program's text.
    rf"|(?:{'|'.join(map(re.escape, _WRITTEN))})(?<![A-Za-z]ESC)\[[0-9;?]{{0,40}}[A-HJKSTfhlmnsu]"
)
_ZERO = pattern(r"0(?=\[\d{1,2}m)")
"""What some viewers leave of each escape character."""
_ENDS_OF_WRITTEN = tuple(dict.fromkeys(f"{each[-2:]}[" for each in _WRITTEN))
"""For a quick test."""
_NESTED = 4
"""Times that codes are removed: removing one can join the halves of another."""
_BARE = pattern(r"\[\d{1,3}(?:;\d{1,3}){0,8}m(?!\])")
"""A colour code without its escape character: `[33m(raylet)[0m`."""
_LEADING = pattern(
    r"(?:\[\d{1,2}m){1,3}(?=\((?:[^()\n]{0,300} )?(?:pid=\d|(?:pid=)?(?:raylet|gcs_server|autoscaler)[ ,)]))"
)
"""Such codes in front of a process's name, of which a paste has lost the reset."""
_NAKED = pattern(
    r"(?:\d{1,2}m){0,3}(?P<prefixes>(?:\([A-Za-z][^()\n]{0,200} pid=\d{1,10}(?:, ip=[^()\n]{1,100})?\)"
    r"(?:\d{1,2}m){0,3} ?){1,4})"
)
"""Process names between codes that lost the escape character and the bracket: `36m(Trainer pid=7)0m text`."""
_NAKED_CODES = pattern(r"(?<=\))(?:\d{1,2}m){1,3}")
_CURSOR = pattern(
    r"(?:\[{1,2}[AK]){1,9}(?=\d{4}-\d\d-\d\d |\([A-Za-z][^()\n]{0,200} pid=\d"
    r"|\((?:raylet|gcs_server|autoscaler)[ ,)]|Traceback \(|ray\.exceptions\.)"
)
"""What is left of the codes with which a progress bar moves up a line."""
_RESETS = ("[0m", "[39m", "[22m", "[0;0m")
"""Without one of these and another code in the line, `[5m` is a program's text."""
_CONTROLS = pattern(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_JOINED = pattern(
    r"(?<=[^\s(])(?="
    r"\((?:raylet|gcs_server|autoscaler)(?:,? [^()\n]{0,80})?\) "
    r"|\([A-Za-z_][\w.:<>-]{0,120}(?:\([^()\n]{0,120}(?:\([^()\n]{0,120}\)[^()\n]{0,120}){0,9}\)"
    r"[\w.:<>-]{0,120}){0,9} pid=\d{1,10}(?:, ip=[^()\n]{1,100})?\) "
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [TDIWECF] \d{1,10} \d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[\t ]{1,8}(?:INFO|WARNING|ERROR) \w+\.py:\d+ -- "
    r"|Traceback \(most recent call last\):(?:$|(?=[(\[\d]|Traceback \()))"
    # A terminal pads its lines with blanks, which a copy keeps instead of the break.
    r"|(?<= {9})(?=ray\.exceptions\.[A-Z]\w+(?:\(\w+\))?: )"
    r"|(?<= raise value\.as_instanceof_cause\(\) )(?=ray\.exceptions\.[A-Z])"
)
"""The start of a line that follows another without a line break, for example after a progress bar."""
_OPENS = pattern(
    r"(?P<pad>[ \t>|]{0,120})(?:Traceback \(most recent call last\):"
    r"|\((?:raylet|gcs_server|autoscaler)[ ,)]|\([^()\n]{0,300}\bpid=\d{1,10}[,)]"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [TDIWECF] \d"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[\t ]"
    r"|ray\.exceptions\.[A-Z]\w+(?:\(\w+\))?: |\[(?:rank|default)\d+\]:"
    r"|(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:|[EF]\d{4} \d\d:\d\d:\d\d\.\d)"
)
_PYTEST = pattern(r"E {3,120}(?=\S)")
_OF_ACTOR = pattern(r" {0,8}(class_name|actor_id|pid|name|namespace|ip): \S")
_DIED = "The actor died unexpectedly before finishing this task."
_GOES_ON = (
    *("Worker exit type: ", "Worker exit detail: ", "There are some potential root causes."),
    *("The worker may have exceeded K8s pod memory limits.", "The process receives a SIGTERM."),
)
"""Sentences of a worker's death that people put on lines of their own."""
_OF_DEATH = "worker process has died."
_COMPOSE = pattern(r"[\w.-]{1,100} +\| ?")
_CODE_SPAN = pattern(r" {0,8}`(?P<text>.*)` {0,8}")
_CSV = pattern(r'(?:[^",\n]{0,80},){1,9}"(?P<text>.*)"(?:,[^",\n]{0,80}){0,9}')
_GREP = pattern(
    r'^"?[\w./-]{1,300}\.(?:log|out|err)(?:\.\d{1,3})?[:-](?:\d{1,9}[:-])?'
    r'(?=\[?\d{4}-\d\d-\d\d |\{"|Traceback \()'
)
"""The file and line number that `grep` prints in front of a record."""
_SRUN = pattern(r" *\d{1,5}: ")
_OF_FILES = (".log:", ".out:", ".err:", ".log-", ".out-", ".err-")
_QUOTE = pattern(r" {0,3}> ?")
_COMMENT = pattern(r"(?:# ?){1,2}")
"""A traceback that is commented out in the program."""
_STEP = pattern(r"[^\t]{1,200}\t[^\t]{1,200}\t(?:\ufeff?(?=\d{4}-\d\d-\d\dT))?")
"""`gh run view --log`: job, step, time."""
_LABEL = pattern(
    r"\[(?:default|rank ?)\d{1,7}\]:? ?|\([^()\n]{1,200} pid=\d{1,10}(?:, ip=[^()\n]{1,100})?\) "
)
_OF_DRIVER = pattern(
    r"(?:[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]{1,200}:\d+\] )?"
    r"(?:\((?:raylet|gcs_server|autoscaler)[ ,)]|\([^()\n]{0,300}\bpid=\d{1,10}[,)]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[\t ]{1,8}INFO worker\.py:\d{1,6} -- )"
)
"""What only drivers print, perhaps through vLLM's logger: other processes' output, and `ray.init`."""
_MARKED = pattern(
    r"(?P<mark>(?:[-*+] )?`{1,2}(?=[^`\s])"
    r"|(?:(?:[-*+>] |>(?! )){1,3}[\"']?|[\"'])"
    r"(?=[\w.]{1,80}(?:Error|Exception): |\([^()\n]{0,200}pid=\d|\(raylet[ ,)]|Traceback \())"
)
"""A list item, code or quotation of Markdown in front of what a program printed."""
_MARKUP = pattern(
    r"\s{0,80}(?:`{3,9} ?\w{0,20}|~{3,9} ?\w{0,20}|</?(?:details|pre|code|summary|p|br)(?: [^<>\n]{0,80})?/?>"
    r"(?:[^<>\n]{0,80}</summary>)?)\s{0,80}"
)
_TAG = pattern(
    r"^ {0,8}<(?:pre|code)(?: [^<>\n]{0,80})?>(?:<code(?: [^<>\n]{0,80})?>)?|(?:</code>)?</(?:pre|code)> *$"
)
_MARKS = frozenset("`-*+>\"'")
_OPENING = pattern(
    r"(?<!Error: )(?<!\w{4})Traceback \(most recent call last\):"
    r"|ray::\w[^()\n]{0,100}\(\) \(pid=\d{1,10}[,)]|\((?:raylet|gcs_server|autoscaler)[ ,)]"
    r"|\([A-Za-z][^()\n]{0,200} pid=\d{1,10}[,)]"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [TDIWECF] \d{1,10} \d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[\t ][A-Z]{4,8} \w{1,60}\.py:\d"
    r"|ray\.exceptions\.[A-Z]\w+(?:\(\w+\))?: "
    r"|(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?\w{1,80}\.py:\d"
)
"""Where a record or traceback begins, behind any prefix."""
_FEWEST = 3
"""Lines that show a prefix of an unknown form."""
_EXCEPTION = ("Error:", "Exception:")
_LONGEST_PREFIX = 300
"""Characters of a prefix of an unknown form: it becomes a pattern."""
_A_VARIABLE = (
    # A run of digits as a whole: several in a row could share the digits of a line in countless ways.
    r"(?:\d{1,300}(?!\d)|\b(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b {0,300}(?! ))"
)
_VARIABLE = pattern(_A_VARIABLE)
_NUMBER = pattern(r"[ \t]{0,8}(?P<number>\d{1,7})")
_DIGITS_OF_NUMBER = 8
_AFTER_NUMBER = pattern(r"\t|[ ]?[|:│][ ]?")
_FRAME_OF_FLAT = 'File "'
_QUOTED = ('"Traceback (most recent call last):', "'Traceback (most recent call last):")
_FLAT_FRAMES = pattern(r"File \"[^\"\n]{1,400}\", line \d{1,7},? in ")
_FLAT_STARTS = pattern(
    r"(?<=\s)(?=Traceback \(most recent call last\):|File \"[^\"\n]{1,400}\", line \d+,? in "
    r"|\((?:raylet|gcs_server|autoscaler)[ ,)]|\([^()\s][^()\n]{0,200} pid=\d{1,10}[,)]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[\t ]+[A-Z]{4,8} "
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [TDIWECF] \d{1,10} \d+\] "
    r"|The above exception was the direct cause |During handling of the above exception"
    r"|(?:class_name|actor_id|namespace|ip): \S|The actor is dead because "
    r"|(?:Current t|T)hread 0x[0-9a-f]{8,16} |Stack \(most recent call first\):"
    r"|[A-Za-z_][\w.]{0,100}(?:Error|Exception)(?:\(\w+\))?: )"
    r"|(?<=[^\s\w.<:(])(?=(?:[a-z_]\w{0,40}\.){1,6}[A-Z]\w{1,80}(?:Error|Exception)(?:\(\w+\))?: )"
)
"""Where lines began in a log whose line breaks became spaces, or were removed."""
_HEADED = r"(?:[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,200}:\d{1,6}\] )?"
"""vLLM's header, which each line of a record has."""
_HEADER_ONLY = pattern(rf"\([^()\n]{{1,200}} pid=\d{{1,10}}(?:, ip=[^()\n]{{1,100}})?\) {_HEADED}")
_FLAT_FRAME = pattern(
    rf"(?P<prefix>(?:\([^()\n]{{1,300}}\) )?{_HEADED})"
    r"(?P<frame>File \"[^\"\n]{1,400}\", line \d+,? in [\w<>.]+) ?(?P<source>.*)"
)
_OF_FLAT = pattern(r"\([^()\s][^()\n]{0,200} pid=\d{1,10}(?:, ip=[^()\n]{1,100})?\) ")
_MOST_OF_FLAT = 2
"""Frames or prefixes of one process in a line that is several lines."""
_ORDER = pattern(
    r"(?:\([^()\n]{1,200}\) )?\[?(?P<stamp>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
)
_MOST_OF = 0.8
_SAMPLED = 400
_LONGEST = 16_384
"""Characters; a longer line is neither searched nor made by joining lines."""
_HEADER = 60
"""Characters: at least as long as a header of Ray's Python code."""
_RULED = "─-=+_*#~^|│╮╯┐┘┤ "
"""Characters at the end of a line of a box, table or rule."""
_WIDEST_FOLDED = 160
_FOLDED_OF = 3
"""One of so many lines is folded in a text that was broken between words."""
_BARE_FRAME = pattern(
    rf"(?P<prefix>(?:\([^()\n]{{1,200}} pid=\d{{1,10}}(?:, ip=[^()\n]{{1,100}})?\) )?{_HEADED})"
    r" ?(?P<frame>File \"[^\"\n]{1,400}\", line \d{1,7}(?:,? in\b.{0,200}|,? ?))$"
)
_OPEN_FRAME = pattern(r" {0,4}File \"[^\"\n]{1,400}\", line \d{1,7}, in ?$")
_FUNCTION = pattern(r"[A-Za-z_<][\w.<>]{0,200} ?")
"""A function's name that a narrow terminal broke off its frame."""
_BELOW = pattern(
    rf"(?P<prefix>(?:\([^()\n]{{1,200}} pid=\d{{1,10}}(?:, ip=[^()\n]{{1,100}})?\) )?{_HEADED})"
    r"(?![A-Z]{4,8} \d\d-\d\d )"
    r"(?![A-Za-z_][\w.]{0,100}(?:Error|Exception|Exit|Interrupt|Warning|Failure)(?:\(\w+\))?(?::|$)"
    r"|ray\.exceptions\.|ray::|File |Traceback |The above exception|During handling|\(|\[|\d{4}-\d\d)\S"
)
"""The program's line below a frame, and the marks below that."""
_BELOW_FRAME = 2
_UNCLOSED = pattern(r'^[^"\n]{0,300}\bFile "[^"\n]{1,400}\.py(?=, line \d{1,7}, in )')
"""A frame of which someone who shortened a path also removed the quotation mark at its end."""
_TYPED_FRAME = "File \u201c"
_TYPED_QUOTES = {ord("\u201c"): '"', ord("\u201d"): '"', ord("\u2018"): "'", ord("\u2019"): "'"}
"""Quotation marks of a word processor."""
_SHORT = 200
"""Lines of a paste in which broken messages are joined."""
_BREAKABLE = pattern(
    r"\((?:raylet|gcs_server|autoscaler|scheduler)[ ,)]|(?:Error|Warning): No available node types? "
)
"""The beginning of a message of Ray's daemons."""
_OF_RAY = pattern(r"(?:.{0,200}[)\]] )?ray\.exceptions\.[A-Z]\w{1,80}: [A-Z].*\w$")
"""An exception of Ray's whose message ends with a word, or within one."""
_PREFIXED = pattern(
    r"\([^()\n]{1,200} pid=\d{1,10}(?:, ip=[^()\n]{1,100})?\)(?: |$)"
    r"|(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]{1,200}:\d{1,7}\](?: |$)"
)
"""The name of a process of Ray, and vLLM's header, which all lines of a record have."""
_FEWEST_RESTS = 2
_OWN_LINE = pattern(
    r"\s{0,8}(?:[\w.]{1,80}(?:Error|Exception|Warning|Interrupt|Exit)\b|File \"|\[)"
)
"""What is not the rest of a line above: an exception, a frame, a stamp."""
_LESS = 4
"""Characters that a line lost after the terminal had broken it: people shorten addresses."""
_SENTENCE_ENDS = (*".!?`)]}", "")
_DIGITS = pattern(r"\d")
_NARROWEST, _WIDEST = 60, 400
"""Columns of a terminal."""

_SEVERITIES = ("CRITICAL  ", "ERROR  ", "WARNING  ")
_REPORT = pattern(r"(?:CRITICAL|ERROR|WARNING) {2}[a-z][a-z-]{1,60}(?: {2}.{0,60})?$")
_REPORTS_TOP = 16
"""Lines of a report down to its evidence: the cause in a few lines."""
_OF_REPORT = (
    *("Errors that no rule explains", "NO CAUSE FOUND", "Missing evidence", "Also found"),
    *("Not collected (optional)", "Read ", "Input: ", "Next: raydoctor "),
)
"""Other lines of a report that are not indented."""


def uncoloured(text: str) -> str:
    """A line without control characters and terminal codes, even if those lost their escape character."""
    if "m(" in text[:9] or ")0m" in text[:200]:
        text = _without_naked_codes(text)
    if text.isprintable() and "[" not in text:
        return text
    is_reset = any(reset in text for reset in _RESETS)
    if text.startswith("[") and not is_reset and (code := _LEADING.match(text)):
        text = text[code.end() :]
    if text.startswith("[") and (code := _CURSOR.match(text)):
        text = text[code.end() :]
    if text.startswith("0[") and "m0[" in text:
        text = _ZERO.sub("\x1b", text)
    # What is removed may have separated the parts of another code.
    for _ in range(_NESTED):
        before = text
        if "[" in text or "\x9b" in text:
            text = _ESCAPES.sub("", text)
            if _is_coloured(text):
                text = _BARE.sub("", text)
        if not text.isprintable():
            text = _CONTROLS.sub("", text)
        if text == before:
            break
    return text


def _without_naked_codes(text: str) -> str:
    found = _NAKED.match(text)
    codes = _NAKED_CODES.findall(found["prefixes"]) if found else []
    if found is None or not (codes or found.start("prefixes")):
        return text
    return _NAKED_CODES.sub("", found["prefixes"]) + text[found.end() :]


def _is_coloured(text: str) -> bool:
    if "m" not in text or not any(reset in text for reset in _RESETS):
        return False
    return any(match[0] not in _RESETS for match in _BARE.finditer(text))


def is_simple(raw: str) -> bool:
    """Whether a line has nothing to remove and no other line joined to it: a quick test."""
    if not (raw.isprintable() or raw.replace("\t", "").isprintable()):
        return False
    if "m(" in raw[:9] or ")0m" in raw[:200]:
        return False
    if "[" in raw:
        if raw[0] == "[" and (_LEADING.match(raw) or _CURSOR.match(raw)):
            return False
        if "m" in raw and ("0m" in raw or "[39m" in raw or "[22m" in raw):
            return False
        for end in _ENDS_OF_WRITTEN:
            if end in raw:
                return False
    return not (_may_be_joined(raw) or _is_flat(raw))


def _may_be_joined(text: str) -> bool:
    # `in` costs a third of a method's call, and few lines have any of these.
    return (
        ("[20" in text and (place := text.find("[20", 1)) > 0 and not text[place - 1].isspace())
        or ("Traceback (" in text and text.rfind("Traceback (") > 0)
        or ("(raylet" in text and text.rfind("(raylet") > 0)
        or ("(autoscaler" in text and text.rfind("(autoscaler") > 0)
        or ("(gcs_server" in text and text.rfind("(gcs_server") > 0)
        or ("pid=" in text and text.rfind("(", 0, text.rfind("pid=")) > 0)
        or (" -- " in text and text.find(" -- ") > _HEADER)
        or "         ray.exceptions." in text
        or "_instanceof_cause() ray.exceptions." in text
    )


def split(raw: str) -> list[str]:
    """The lines in one line: text that a progress bar overwrote, and lines without a break between them."""
    pieces: list[str] = []
    parts = [part for part in raw.split("\r") if part] if "\r" in raw else [raw]
    for part in parts:
        text = uncoloured(part)
        if len(text) <= _LONGEST and _is_flat(text):
            pieces += [line for each in _JOINED.split(text) for line in _unflattened(each)]
        elif len(text) <= _LONGEST and _may_be_joined(text):
            pieces += _JOINED.split(text)
        elif text or "\r" not in raw:
            pieces.append(text)
    return pieces


def _is_flat(text: str) -> bool:
    """Whether a line is a log without its line breaks: it has several frames, or one prefix several times."""
    if _FRAME_OF_FLAT in text:
        frames = _FLAT_FRAMES.findall(text)
        if len(frames) >= _MOST_OF_FLAT or (frames and "most recent call " in text):
            return True
    if text.count(" pid=") >= _MOST_OF_FLAT and (match := _OF_FLAT.search(text)):
        return text.count(match[0]) >= _MOST_OF_FLAT
    return False


def _unflattened(text: str) -> list[str]:
    """The lines of a log whose line breaks became spaces."""
    lines: list[str] = []
    for piece in _joined_with_prefix(_FLAT_STARTS.split(text)):
        if match := _FLAT_FRAME.fullmatch(piece.rstrip()):
            prefix, source = match["prefix"], match["source"].strip()
            lines.append(f"{prefix}{match['frame']}")
            lines += [f"{prefix}    {source}"] if source else []
        else:
            lines.append(piece.rstrip())
    return lines


def _joined_with_prefix(pieces: list[str]) -> list[str]:
    """The pieces, with the prefix of a process joined to the line that it begins."""
    joined: list[str] = []
    for piece in pieces:
        last = joined[-1] if joined else ""
        is_prefix = _LABEL.fullmatch(last) or _HEADER_ONLY.fullmatch(last)
        if last and is_prefix and not _LABEL.fullmatch(piece):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def _without_numbers(lines: list[Numbered]) -> list[Numbered]:
    """The lines without the numbers that an editor, `cat -n` or a log viewer put before each of them."""
    match = _NUMBER.match(lines[0][1]) if lines else None
    if not match or len(lines) < 2 or not _NUMBER.match(lines[1][1]):
        return lines
    for step in (1, -1):
        shown = [
            _after_number(text, int(match["number"]) + step * n)
            for n, (_, text) in enumerate(lines[:_SAMPLED])
        ]
        texts = [text for text in shown if text is not None]
        if len(texts) < max(3, _MOST_OF * len(shown)) or not any(
            _OPENS.match(text) or _ORDER.match(text.lstrip()) for text in texts
        ):
            continue
        gap = min((len(text) - len(text.lstrip(" ")) for text in texts if text.strip()), default=0)
        return [
            (number, text if rest is None else rest[gap:])
            for n, (number, text) in enumerate(lines)
            for rest in (_after_number(text, int(match["number"]) + step * n),)
        ]
    return lines


def _after_number(text: str, number: int) -> str | None:
    """What follows a line's number; None if the line does not begin with it."""
    rest = text.lstrip(" \t")
    if number < 0 or not rest.startswith(str(number)):
        return None
    rest = rest[len(str(number)) :]
    separator = _AFTER_NUMBER.match(rest)
    return rest[separator.end() :] if separator else rest


def without_common_prefix(lines: list[Numbered]) -> list[Numbered]:
    """The lines without what nearly all begin with: numbers, `> `, a compose service, srun's rank, a label, a
    step of `gh run view`; and without the file that `grep` prints in front of a record."""
    lines = _without_numbers(lines)
    if any(mark in text for _, text in lines[:_SAMPLED] for mark in _OF_FILES):
        lines = [(number, _GREP.sub("", text, count=1)) for number, text in lines]
    is_frame = any('File "' in text and text.startswith("#") for _, text in lines[:_SAMPLED])
    for form in (_QUOTE, _COMPOSE, _SRUN, _STEP, *([_COMMENT] if is_frame else ())):
        sample = [text for _, text in lines[:_SAMPLED] if text.strip()]
        if len(sample) >= 3 and sum(
            form.match(text) is not None for text in sample
        ) >= _MOST_OF * len(sample):
            lines = [
                (number, text[match.end() :] if (match := form.match(text)) else text)
                for number, text in lines
            ]
    return _without_label(lines)


def without_quotation(raws: list[str]) -> list[str]:
    """The lines without what encloses nearly all of them: backticks, or a field of a table of CSV."""
    raws = _unquoted(raws)
    sample = [raw for raw in raws[:_SAMPLED] if raw.strip()]
    for form, mark in ((_CODE_SPAN, "`"), (_CSV, '"')):
        if len(sample) < _FEWEST or mark not in sample[0]:
            continue
        if sum(form.fullmatch(raw) is not None for raw in sample) >= _MOST_OF * len(sample):
            return [
                match["text"].replace('""', '"') if match else raw
                for raw in raws
                for match in (form.fullmatch(raw),)
            ]
    return raws


def numbers_between(raws: list[str]) -> set[int]:
    """The places of lines that hold only the number of the next one, as a copy from a viewer has them."""
    found = [
        (n, int(raw))
        for n, raw in enumerate(raws)
        if raw.isdecimal() and len(raw) < _DIGITS_OF_NUMBER
    ]
    steps = {(place - before, number - last) for (before, last), (place, number) in pairwise(found)}
    is_counted = len(found) >= _FEWEST and steps == {(2, 1)} and len(raws) <= 2 * len(found) + 1
    return {place for place, _ in found} if is_counted else set()


def _unquoted(raws: list[str]) -> list[str]:
    """The lines with a space for a quotation mark left of a traceback, if its other lines are set so."""
    n = next((n for n, raw in enumerate(raws[:_SAMPLED]) if raw.strip()), 0)
    is_shifted = n + 1 < len(raws) and raws[n + 1].startswith(f"   {_FRAME_OF_FLAT}")
    if not is_shifted or not raws[n].startswith(_QUOTED):
        return raws
    return [*raws[:n], f" {raws[n][1:]}", *raws[n + 1 :]]


def without_unknown_prefix(raws: list[str]) -> list[str]:
    """The lines without a prefix of a form that no step knows, if nearly all lines begin with it.

    It is what stands in front of the first record or traceback, and its digits and level may differ from line
    to line: CI systems, schedulers and log viewers print a time, a level and a name of their own.
    """
    sample = [raw for raw in raws[: 10 * _SAMPLED] if raw.strip()]
    if len(sample) < _FEWEST:
        return raws
    openings = (found for raw in sample if (found := _OPENING.search(raw)))
    for opening in islice(openings, _FEWEST):
        prefix = opening.string[: opening.start()]
        if not uncoloured(prefix[:_LONGEST]).strip():
            return raws
        if (
            len(prefix) > _LONGEST_PREFIX
            or "\\" in prefix
            or prefix.count('"') % 2
            or prefix.count("'") % 2
            or prefix.rstrip().endswith(_EXCEPTION)
        ):
            continue  # a quotation, a string of JSON, or an exception whose message is a record
        known = (uncoloured(opening.string), f"{uncoloured(prefix)}x")
        if any(_OPENING.match(text) or text == "x" for text in map(_stripped, known)):
            continue  # removed line by line: its level and time are kept
        parts = [re.escape(part) for part in _VARIABLE.split(prefix.rstrip())]
        form = pattern(_A_VARIABLE.join(parts))
        if sum(form.match(raw) is not None for raw in sample) >= _MOST_OF * len(sample):
            gap = len(prefix) - len(prefix.rstrip())
            return [_behind(raw, form, gap) for raw in raws]
    return raws


def _stripped(text: str) -> str:
    return prefixes.strip(text).text


def _behind(raw: str, form: re.Pattern[str], gap: int) -> str:
    """A line without a prefix and the blanks that follow it."""
    match = form.match(raw)
    rest = raw[match.end() :] if match else raw
    return rest[min(gap, len(rest) - len(rest.lstrip(" \t"))) :] if match else raw


def _without_label(lines: list[Numbered]) -> list[Numbered]:
    """The lines without the label that a launcher put before nearly all lines of a driver."""
    first = next((text for _, text in lines if text), "")
    match = _LABEL.match(first) if first[:1] in ("[", "(") else None
    if not match:
        return lines
    label = match[0].rstrip()
    sample = [text for _, text in lines[: 10 * _SAMPLED] if text]
    own = [text[match.end() :] for text in sample if text.startswith(label)]
    if len(own) < max(3, _MOST_OF * len(sample)) or not any(map(_is_of_driver, own)):
        return lines
    return [
        (number, text[match.end() :] if text.startswith(label) else text) for number, text in lines
    ]


def _is_of_driver(text: str) -> bool:
    return _OF_DRIVER.match(text) is not None


_EMPTY = ("RPC Error details:", "so the task will be retried. Error:")
"""Ends of a raylet's messages whose last part is empty: what follows is another line."""
_SYSLOG = pattern(
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,100} (?!kernel: )[\w./@-]{1,100}(?:\[\d{1,10}\])?: "
)
"""The head of a line of syslog."""


def without_foreign_logs(lines: list[Numbered]) -> list[Numbered]:
    """The lines of a driver, with those emptied that it prints of another system's log.

    Beside lines of Ray without the head of syslog, that head is not a launcher's.
    """
    heads = [_SYSLOG.search(text) for _, text in lines]
    if not any(heads) or not any(
        head is None and _is_of_driver(text)
        for head, (_, text) in zip(heads, lines[: 10 * _SAMPLED], strict=False)
    ):
        return lines
    return [
        (number, "" if head else text) for head, (number, text) in zip(heads, lines, strict=True)
    ]


def unwrapped(lines: list[Numbered]) -> list[Numbered]:
    """The lines, with those joined that a terminal broke at its last column."""
    sample = [text for _, text in lines[: 10 * _SAMPLED]]
    width = max(map(len, sample), default=0)
    folds = _folds(lines)
    if folds and len(folds) >= 2 * sum(len(text) == width for text in sample):
        return _unfolded(lines, folds)
    if not _NARROWEST <= width <= _WIDEST:
        return lines
    if rests := _rests(lines, width):
        return _with_rests(lines, rests)
    if not _is_wrapped(sample, width, len(lines)):
        return lines
    joined: list[Numbered] = []
    whole, length = True, 0
    for number, text in lines:
        if whole or length > _LONGEST or (_OPENS.match(text) and joined[-1][1][-1:] != " "):
            joined.append((number, text))
            length = len(text)
        else:
            joined[-1] = (joined[-1][0], joined[-1][1] + text)
            length += len(text)
        whole = len(text) < width
    return joined


def _rests(lines: list[Numbered], width: int) -> set[int]:
    """The lines without the prefix that the others have, if each of them is below one of the full width.

    Lines of one width that a program prints one below the other are whole.
    """
    rests: set[int] = set()
    whole = 0
    for n, ((_, above), (_, text)) in enumerate(pairwise(lines), 1):
        is_full = len(above) >= width - _LESS
        if not text.strip() or _PREFIXED.match(text):
            whole += is_full and not above.endswith("  ")
            continue
        if not is_full or _OPENS.match(text) or _OWN_LINE.match(text):
            return set()
        rests.add(n)
    if whole > len(rests) // 2:
        return set()
    return rests if _FEWEST_RESTS <= len(rests) <= len(lines) // 2 else set()


def _with_rests(lines: list[Numbered], rests: set[int]) -> list[Numbered]:
    """The lines, with the rests joined to the lines above."""
    joined: list[Numbered] = []
    for n, (number, text) in enumerate(lines):
        if n in rests and len(joined[-1][1]) <= _LONGEST:
            joined[-1] = (joined[-1][0], joined[-1][1] + text)
        else:
            joined.append((number, text))
    return joined


def _folds(lines: list[Numbered]) -> set[int]:
    """The lines of a short paste that go on the line above, which a mail or a chat broke between words.

    The line above is as long as the width permits: the first word of the next one does not fit into it.
    """
    texts = [text.rstrip() for _, text in lines[: _SHORT + 1]]
    width = max(map(len, texts), default=0)
    if not _NARROWEST <= width <= _WIDEST_FOLDED or len(texts) > _SHORT:
        return set()
    below = enumerate(pairwise(texts), 1)
    folds = {n for n, (text, next_) in below if _is_folded(text, next_, width)}
    return folds if len(folds) >= max(_FEWEST, len(texts) // _FOLDED_OF) else set()


def _unfolded(lines: list[Numbered], folds: set[int]) -> list[Numbered]:
    """The lines, with those joined that go on the line above."""
    joined: list[Numbered] = []
    for n, (number, text) in enumerate(lines):
        if n in folds:
            joined[-1] = (joined[-1][0], f"{joined[-1][1].rstrip()} {text}")
        else:
            joined.append((number, text))
    return joined


def _is_folded(text: str, below: str, width: int) -> bool:
    word = below.partition(" ")[0]
    return (
        word != ""
        and text[-1:] not in _RULED
        and len(text) <= width < len(text) + 1 + len(word)
        and len(word) < width
        and not _OPENS.match(below)
        and not _ORDER.match(below)
        and _DIGITS.sub("0", text[:8]) != _DIGITS.sub("0", below[:8])
    )


def reindented(lines: list[Numbered]) -> list[Numbered]:
    """The lines, with the indentation of tracebacks restored where a web page or a chat removed it."""
    if not any(_FRAME_OF_FLAT in text or _TYPED_FRAME in text for _, text in lines):
        return lines
    result: list[Numbered] = []
    below, prefix = 0, ""
    for number, raw in lines:
        text = raw.translate(_TYPED_QUOTES) if _TYPED_FRAME in raw else raw
        text = _UNCLOSED.sub(r'\g<0>"', text) if ".py, line " in text else text
        if result and _OPEN_FRAME.search(result[-1][1]) and _FUNCTION.fullmatch(text):
            result[-1] = (result[-1][0], f"{result[-1][1].rstrip()} {text.strip()}")
            continue
        match = _BARE_FRAME.match(text)
        if match:
            prefix = match["prefix"]
            text = f"{prefix}  {match['frame']}"
            below = _BELOW_FRAME
        elif (
            below
            and (line := _BELOW.match(text))
            # A record of its own has another header.
            and (line["prefix"] == prefix or "] " not in line["prefix"] + prefix)
        ):
            text = f"{line['prefix']}    {text[line.end('prefix') :]}"
            below -= 1
        else:
            below = 0
        result.append((number, text))
    return result


def rejoined(lines: list[Numbered]) -> list[Numbered]:
    """The lines of a short paste, with Ray's own messages joined that a chat or a narrow terminal broke.

    A message goes on if its line ends within a sentence and the next line begins nothing new.
    """
    if len(lines) > _SHORT:
        return lines
    joined: list[Numbered] = []
    is_open = False
    width = max((len(text) for _, text in lines), default=0)
    for number, text in lines:
        if joined and text.startswith(_GOES_ON) and _OF_DEATH in joined[-1][1]:
            joined[-1] = (joined[-1][0], f"{joined[-1][1].rstrip()} {text}")
        elif is_open and _goes_on(joined[-1][1], text):
            joined[-1] = (joined[-1][0], joined[-1][1] + text)
            is_open = len(text) == width or _BREAKABLE.match(joined[-1][1]) is not None
        else:
            joined.append((number, text))
            is_cut = len(text) == width and _OF_RAY.match(text)
            is_open = bool(is_cut or _BREAKABLE.match(text))
    return joined


def _goes_on(whole: str, below: str) -> bool:
    is_cut = len(whole) >= _NARROWEST or whole.rstrip().endswith((":", ","))
    return (
        is_cut
        and not whole.rstrip().endswith(_EMPTY)
        and whole.rstrip()[-1:] not in _SENTENCE_ENDS
        and below.strip() != ""
        and not below.startswith("  ")
        and not (below[0].isupper() and below[1:2] != "_")
        and not _OPENS.match(below)
        and not _ORDER.match(below)
    )


def _is_wrapped(texts: list[str], width: int, count: int) -> bool:
    """Whether lines of the full width continue in the next: they end within a word and look different."""
    full = [
        (text, below)
        for text, below in pairwise([*texts, ""])
        if len(text) == width and text[-1] not in _RULED
    ]
    if len(full) < max(3, min(count, len(texts)) // 50):
        return False
    within = sum(text[-1].isalnum() and below[:1].isalnum() for text, below in full)
    alike = sum(_DIGITS.sub("0", text[:8]) == _DIGITS.sub("0", below[:8]) for text, below in full)
    return within >= 0.3 * len(full) and alike <= 0.2 * len(full)


def oldest_first(lines: list[Numbered]) -> list[Numbered]:
    """The lines in order of time: some log viewers show the newest line first."""
    stamps = [
        match["stamp"].replace("T", " ")
        for _, text in lines[: 10 * _SAMPLED]
        if (match := _ORDER.match(text))
    ]
    falls = sum(later < earlier for earlier, later in pairwise(stamps))
    rises = sum(later > earlier for earlier, later in pairwise(stamps))
    if falls < 2 or falls * 0.2 < rises:
        return lines
    stamped = sum(_ORDER.match(text) is not None for _, text in lines)
    if stamped >= _MOST_OF * len(lines):
        return lines[::-1]
    records: list[list[Numbered]] = []
    for line in lines:
        if _ORDER.match(line[1]) or not records:
            records.append([])
        records[-1].append(line)
    return [line for record in reversed(records) for line in record]


def dedented(lines: list[Numbered]) -> list[Numbered]:
    """The lines without indentation, quotation marks or pytest's `E` before records and tracebacks."""
    pad = margin = ""
    result: list[Numbered] = []
    for line in lines:
        number, raw = line
        text, first = raw, raw[:1]
        if first in _MARKS and (match := _MARKED.match(text)):
            text = _unmarked(text[match.end() :]) if "`" in match[0] else text[match.end() :]
            text = text or raw
            first = text[:1]
        if first and first in " \t>|":
            margin = ""
            if match := _OPENS.match(text):
                pad = match["pad"]
            elif pad and text.strip() and not text.startswith(pad):
                pad = ""
            if pad:
                text = text[len(pad) :] if text.startswith(pad) else text.strip()
        elif first:
            pad = ""
            if margin and text.startswith(margin):
                text = text[len(margin) :]
            elif first == "E" and (match := _PYTEST.match(text)):
                margin = match[0]
                text = text[len(margin) :]
            elif margin and text.strip() == "E":
                text = ""
            else:
                margin = ""
        result.append(line if text is raw else (number, text))
    return _with_tabs(result) if any("class_name: " in text for _, text in result) else result


def without_markup(lines: list[Numbered]) -> list[Numbered]:
    """The lines without those that hold only the marks of a web page around a block of text."""
    if not any(text.lstrip()[:1] in ("`", "~", "<") for _, text in lines):
        return lines
    bare = [(number, _TAG.sub("", text)) for number, text in lines if not _MARKUP.fullmatch(text)]
    return bare or lines


def without_cut_label(lines: list[Numbered]) -> list[Numbered]:
    """The lines without a last one that is only the beginning of the label above: a paste ends within it."""
    last = lines[-1][1] if len(lines) > 1 else ""
    label, end, _ = lines[-2][1].partition(")") if last.startswith("(") else ("", "", "")
    is_cut = bool(end) and label.startswith(last)
    return lines[:-1] if is_cut else lines


def without_reports(lines: list[Numbered]) -> list[Numbered]:
    """The lines without reports of this program: what they quote is not evidence."""
    kept: list[Numbered] = []
    done = 0
    for n in [n for n, (_, text) in enumerate(lines) if text.startswith(_SEVERITIES)]:
        if n >= done and (end := _end_of_report(lines, n)):
            kept += lines[done:n]
            done = end
    return kept + lines[done:] if done else lines


def _end_of_report(lines: list[Numbered], begin: int) -> int:
    """The number of the line below a report; 0 if none begins there."""
    top = [text for _, text in lines[begin : begin + _REPORTS_TOP]]
    if not _REPORT.match(top[0]) or "  Evidence" not in top:
        return 0
    in_headline = False
    for n in range(begin, len(lines)):
        text = lines[n][1]
        if _REPORT.match(text):
            in_headline = True
        elif not text:
            in_headline = False
        elif not in_headline and not text.startswith(("  ", *_OF_REPORT)):
            return n
    return len(lines)


def _unmarked(text: str) -> str:
    """What a span of code contains if it goes to the end of the line; otherwise empty."""
    text = text.rstrip().rstrip("`")
    return "" if "`" in text else text


def _with_tabs(lines: list[Numbered]) -> list[Numbered]:
    """The lines, with the tabs restored that indent the details of an actor in `ActorDiedError`."""
    result: list[Numbered] = []
    is_actors = False
    above = ""
    for number, text in lines:
        match = _OF_ACTOR.match(text)
        is_first = match is not None and match[1] in ("class_name", "actor_id")
        is_indented = text[:4] == "    " or above.endswith(_DIED)
        is_actors = match is not None and (is_actors or (is_first and is_indented))
        above = text
        result.append((number, "\t" + text.lstrip() if is_actors else text))
    return result


def opens(text: str) -> bool:
    """Whether a line begins a record or a traceback, so that a text may be cut before it."""
    return text[:1] not in (" ", "\t", "") and _OPENS.match(text) is not None
