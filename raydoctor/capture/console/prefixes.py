"""Removes the prefixes of launchers, containers, loggers and ranks from a line.

Ray's own prefixes remain: `(train pid=12, ip=10.0.0.2) text`, `[2026-11-21 07:34:50,739 W 283 293] (raylet)
f.cc:3: text` and `2026-11-21 07:35:03,092<TAB>WARNING worker.py:2622 -- text`. Of several process
prefixes, the innermost is kept. The header of another logger becomes raydoctor's own header (`HEADER`),
which `read/records.py` reads.

The formats come from public threads and from the sources of torch (c10 logging), vLLM (`vllm/logger.py`),
loguru, structlog, Docker, CRI (`containerd`), `kubectl logs --prefix`, `docker compose`, torchrun
(`--redirects`, `--tee`) and SkyPilot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from raydoctor.model.patterns import pattern

HEADER = "\x1e"
"""Encloses `<level letter>|<stamp>|<rank>|<printed>`. Control characters of the console are removed first."""
_DEEPEST = 8
"""Maximum of prefixes of one line: a launcher's stamp, a rank, three processes and a logger are six."""

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
"""Time of a record of Ray's: local, to the millisecond."""
_LEVEL = (
    r"(TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARN(?:ING)?|ERR(?:OR)?|CRITICAL|FATAL|EXCEPTION"
    r"|trace|debug|info|warn(?:ing)?|error|critical|fatal|exception)"
)
_LETTERS = {"T": "D", "N": "I", "S": "I", "F": "C"}
"""Ray's letter for a level, by the level's first letter, if the two differ."""
_RAYS = pattern(
    rf"\[{STAMP} [TDIWECF] \d{{1,10}} \d+\] "
    rf"|{STAMP}[\t ]+(?:DEBUG|INFO|WARNING|ERROR|ERR|CRITICAL)[\t ]+[\w./-]+:\d+ -- "
    rf"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) {STAMP} \S+ \S+ "
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+(?:\d{1,10} ){1,2}[\w./-]+:\d+\] "
)
"""Headers that Ray's processes write."""
_DAEMON = r"(?:pid=)?(?:raylet|gcs_server|autoscaler|scheduler)(?:[ ,][^()\n]{0,100})?"
NAMED = r"(?:[^()\n]{0,300}\([^()\n]{0,300}(?:\([^()\n]{0,300}\)[^()\n]{0,300}){0,20}\)){0,20}[^()\n]{0,300}"
"""Text in parentheses, with two more levels: `MapWorker(ReadParquet->Map(f)->MapBatches(g)) pid=12`."""
_PARENTHESES = pattern(rf"\((?P<who>{NAMED})\)(?P<gap>[ \t]?)")
_UNBALANCED = pattern(
    r"\((?P<name>[^\s][^\n]{0,300}?)(?P<id> pid=\d{1,10}(?:, ip=[^()\n]{1,100})?)\)[ \t]?"
)
"""The prefix of a task whose own name has brackets without a counterpart."""
_OF_PROCESS = pattern(rf"(?:{_DAEMON}|(?:.*[^\w])?pid=\d{{1,10}}(?:, ip=[^()\n]{{1,100}})?)")
_RANK_OF_PROCESS = pattern(r", rank=(?P<rank>\d{1,7})\b")
_RANK = pattern(
    r"\[(?:default|rank ?)(?P<a>\d{1,7})\]:? ?|\[(?P<b>\d{1,7})\]: "
    r"|\[\d+,(?P<c>\d{1,7})\]<std(?:out|err)>: ?"
)
"""torch and torchrun, MPI. `[Rank 1] ` is part of a message of the NCCL watchdog, not a prefix."""
_STAMPED = pattern(
    r"(?!.{10,60} kernel: )(?:\[pod/[\w./-]{1,300}\] "
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?[ \t](?:std(?:out|err) [FP] )?"
    r"|\[?(?P<stamp>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?:Z| ?[+-]\d\d:?\d\d| UTC)?(?: (?:[DEPT]P|ATTN_[CDT]P|MOE_[DE]P)\d{1,5}){0,6}"
    r"\]?(?:[ \t]|(?=\[)|$)(?:[-|] )?"
    r"|\[\d\d/\d\d/\d\d \d\d:\d\d:\d\d\][ \t]"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,100} [\w./@-]{1,100}(?:\[\d{1,10}\])?: )"
)
"""SGLang's, `[2026-11-21 07:35:03 DP1 TP3] text`, begins a record: its ranks are left out."""
_OLD_DAEMONS = ("(pid=raylet", "(pid=gcs_server")
"""Prefixes of Ray 0.8 to 1.0."""
_NO_PID = ("(pid=None) ", "(pid=) ")
"""The raylet's, on Windows in 1.4 to 1.13."""
_FILE = pattern(r"\(/[^()\n]{1,300}/logs/[\w.-]{1,200}\) (?=\[?\d{4}-)")
"""The file of Ray's logs that a log collector puts in front of a record."""
_LOGGER = pattern(
    # vLLM: `ERROR 10-23 12:00:00 [core.py:845] text`, before 0.8 `ERROR 10-23 12:00:00 core.py:845] text`.
    rf"{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[\w./-]{{1,200}}:\d+\] ?"
    # torch's c10: `[E1023 12:00:00.123456789 ProcessGroupNCCL.cpp:629] text`, before 2.1 without the time.
    r"|\[([EWIF])(?:\d{3,4} \d\d:\d\d:\d\d\.\d+)? [\w./-]{1,200}:\d+\] ?"
    # SkyPilot: `E 10-23 12:00:00 provisioner.py:740] text`.
    r"|([DIWE]) \d\d-\d\d \d\d:\d\d:\d\d [\w./-]{1,200}\.py:\d+\](?: (?:⨯ )?|$)"
    # Python's default: `ERROR:root:text`.
    rf"|{_LEVEL}:[\w.-]{{1,200}}:(?!/)"
    # Ray's header after a person removed the time; `worker.py` also logs what raylets push.
    rf"|{_LEVEL} (?!worker\.py)\w{{1,60}}\.py:\d{{1,5}} -- "
)
_AFTER_STAMP = pattern(
    r" {0,8}(?:"
    # `[module][ERROR] - text` (hydra), `[ERROR] text`, `[error    ] text` (structlog)
    rf"(?:\[[\w.<>-]{{1,200}}\])?\[{_LEVEL} *\](?::| -)? +"
    # `ERROR - name - text`, `name - ERROR - text`, `name ERROR: text`, `ERROR | module:f:12 - text`.
    # After a name, a level in lower case is a word: `Worker info: text`.
    rf"|(?:[\w.<>\[\]-]{{1,200}} (?:- |(?=[A-Z]{{3}})))?{_LEVEL} *(?:\||-|:) +"
    r"(?:[\w.<>]{1,200}(?::[\w.<>]{1,200}:\d+)? [-|] )?"
    # `ERROR    name:file.py:12 text`, `ERROR text` (rich)
    rf"|{_LEVEL} {{1,8}}(?:[\w.]{{1,200}}:[\w.]{{1,200}}\.py:\d+ )?"
    r")"
)
"""A logger's header after a stamp."""
_SPACED = pattern(
    rf"({STAMP}) {{1,8}}(DEBUG|INFO|WARNING|ERROR|CRITICAL) {{1,8}}(?=[\w./-]+:\d+ --(?: |$))"
)
"""A header of Ray with spaces in place of tabs."""
_EMPTY = pattern(
    rf"{STAMP}[\t ]+(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[\t ]+[\w./-]{{1,200}}:\d+ --"
)
"""A header whose message begins on the next line: people lose the blank at its end."""
_PUSHED = pattern(
    rf"(?:{STAMP}[\t ]+)?(?:WARNING|ERROR)[\t ]+worker\.py:\d{{1,5}} -- (?="
    r"A worker died or was killed while executing |The node with (?:node id|client ID):? "
    r"|The actor or task with ID |Task was killed due to the node running low on memory)"
)
"""What raylets and the GCS push to drivers: `worker.py` logs it up to 2.8; later it is `(raylet)`."""
_ABSL = pattern(r"(?P<level>[EF])\d{4} \d\d:\d\d:\d\d\.\d+\s+(?:\d{1,10} ){1,2}[\w./-]+:\d+\] ")
"""gRPC's, abseil's and torchrun's header of an error: it stays, and its level is added."""
_PLACE = pattern(
    r"(?:\[[A-Z]{2,10}\] )?(?:\((?:raylet|gcs_server)\) )?[a-z_]{3,60}\.(?:cc|h):\d{1,5}: ?"
)
"""What is left of a header of Ray's C++ after a person removed the time."""
_BARE_PLACE = pattern(r"core_worker(?:_process)?\.cc:\d{1,5}: (?=Failed to register worker )")
"""The same of a driver, for the message above its end: the file names the only process that prints it."""
_UNPREFIXED = (
    "A worker died or was killed while executing a task by an unexpected system error.",
    *("The node with node id: ", "Some workers of the worker process("),
    "The actor or task with ID ",
)
"""The raylet's message without its prefix."""
_OPENINGS = (
    *("TRACE", "DEBUG", "INFO", "NOTICE", "SUCCESS", "WARN", "ERR", "CRITICAL", "FATAL"),
    *("EXCEPTION", *_UNPREFIXED),
)
_PARSED: set[str] = set()
"""Process prefixes that have already been parsed."""
_MOST_PARSED = 10_000


@dataclass(slots=True)
class Stripped:
    """A line without foreign prefixes."""

    text: str
    process: str = ""
    """The innermost process prefix as Ray prints it, with a space after it; or empty."""
    rank: str = ""
    level: str = ""
    """The level of another logger's header, as a letter of Ray's C++; empty without such a header."""
    stamp: str = ""
    """`YYYY-MM-DD HH:MM:SS,mmm` of that header."""
    header: str = ""
    """That header unchanged, after those of outer loggers: these repeat theirs in every line of a record."""
    is_printed: bool = False
    """Whether the text is an exception that a program printed, in Python's form."""
    changed: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The process and rank that wrote the line."""
        return self.process, self.rank

    def line(self, is_new_record: bool) -> str:
        """The line as the reader parses it."""
        level, stamp = (self.level, self.stamp) if is_new_record and self.level else ("", "")
        parts = (level, stamp, self.rank, "printed" if self.is_printed else "")
        header = f"{HEADER}{'|'.join(parts)}{HEADER}" if any(parts) else ""
        return f"{self.process}{header}{self.text}"


def is_rays(text: str) -> bool:
    """Whether a line begins with a header that Ray's processes write."""
    return _RAYS.match(text) is not None


def is_bare(text: str) -> bool:
    """Whether a line certainly has no foreign prefix: a quick test."""
    first = text[:1]
    if first == "(":
        end = text.find(") ") + 2
        if text[:end] not in _PARSED:
            return False
        of_daemon = text.startswith(("(raylet", "(gcs_server"))
        text = text[end:]
        first = text[:1]
        if first == "(" or " pid=" in text or (of_daemon and ".cc:" in text[:60]):
            return False
    if first == "[":
        return is_rays(text)
    if first.isdigit() and text[:4].isdigit():
        pushed = text.startswith(("WARNING worker.py:", "ERROR worker.py:"), 24)
        return text[23:24] == "\t" and is_rays(text) and not pushed
    return not (
        text.startswith("core_worker")
        or (
            first.isupper()
            and (
                text.startswith(_OPENINGS)
                or text[3:4] == " "
                or (text[1:2] == " " and text[4:5] == "-")
                or (first in "EF" and text[1:5].isdigit())
            )
        )
        or "Traceback (" in text
    )


def strip(line: str) -> Stripped:
    """Remove foreign prefixes from a line."""
    is_empty = line.endswith(" --") and _EMPTY.fullmatch(line) is not None
    found = Stripped(f"{line} " if is_empty else line, changed=is_empty)
    for _ in range(_DEEPEST):
        if not _strip_one(found):
            break
    if found.text[:1].isdigit() and (match := _SPACED.match(found.text)):
        found.text = f"{match[1]}\t{match[2]} {found.text[match.end() :]}"
        found.changed = True
    is_drivers = not found.process and " worker.py:" in found.text[:45]
    if is_drivers and (match := _PUSHED.match(found.text)):
        found.process, found.changed = "(raylet) ", True
        if not found.text[:1].isdigit():
            found.text = found.text[match.end() :]
    if not found.process and (place := _BARE_PLACE.match(found.text)):
        found.level, found.header = "E", place[0].rstrip()
        _take(found, place.end())
    if not found.process and found.text.startswith(_UNPREFIXED):
        found.process, found.changed = "(raylet) ", True
    if found.level and _RAYS.match(found.text):
        found.level = found.header = ""  # Ray's own header says more
    if found.text[:1] in ("E", "F") and (match := _ABSL.match(found.text)):
        found.level, found.header = "E" if match["level"] == "E" else "C", match[0]
    return found


def _strip_one(found: Stripped) -> bool:
    text = found.text
    first = text[:1]
    if first == "(":
        return _strip_process(found)
    if not (first == "[" or first.isdigit() or first.isupper()) or _RAYS.match(text):
        return False
    if first == "[" and (match := _RANK.match(text)):
        found.rank = match["a"] or match["b"] or match["c"]
        return _take(found, match.end())
    if match := _LOGGER.match(text):
        _head(found, match)
        return _take(found, match.end())
    match = _STAMPED.match(text)
    if not match:
        return False
    if stamp := match["stamp"]:
        fraction = f"{match['fraction'] or ''}000"[:3]
        found.stamp = f"{stamp.replace('/', '-').replace('T', ' ')},{fraction}"
    _take(found, match.end())
    if not _RAYS.match(found.text) and (logger := _AFTER_STAMP.match(found.text)):
        _head(found, logger, match[0])
        _take(found, logger.end())
    return True


def _strip_process(found: Stripped) -> bool:
    if file := _FILE.match(found.text):
        return _take(found, file.end())
    if found.text.startswith(_NO_PID):
        found.text, found.changed = f"(raylet) {found.text.partition(') ')[2]}", True
    if found.text.startswith(_OLD_DAEMONS):
        found.text, found.changed = f"({found.text[len('(pid=') :]}", True
    match = _PARENTHESES.match(found.text)
    if not match or (match[0] not in _PARSED and not _OF_PROCESS.fullmatch(match["who"])):
        return _strip_unbalanced(found)
    who = match["who"]
    if ", pid=" in who and ", rank=" not in who:  # a label of SkyPilot's: `(train, pid=12) `
        return _take(found, match.end())
    if len(_PARSED) < _MOST_PARSED and match["gap"] == " " and ", rank=" not in who:
        _PARSED.add(match[0])
    is_outer = not found.process
    found.changed |= not is_outer
    found.process = f"({who}) "
    if rank := _RANK_OF_PROCESS.search(who):
        found.rank = rank["rank"]
    found.text = found.text[match.end() :]
    if who.startswith(("raylet", "gcs_server")) and (place := _PLACE.match(found.text)):
        _take(found, place.end())
        if is_outer and found.text.lstrip().startswith("Check failed: "):  # always fatal
            found.level, found.header = found.level or "C", found.header or place[0]
    return True


def _strip_unbalanced(found: Stripped) -> bool:
    match = _UNBALANCED.match(found.text)
    if not match or match["name"].count("(") == match["name"].count(")"):
        return False
    found.process = f"({match['name'].replace('(', '[').replace(')', ']')}{match['id']}) "
    return _take(found, match.end())


def _head(found: Stripped, match: re.Match[str], stamp: str = "") -> None:
    level = next(group for group in match.groups() if group).upper()
    found.level = "E" if level == "EXCEPTION" else _LETTERS.get(level[0], level[0])
    found.header += (stamp + match[0]).rstrip()


def _take(found: Stripped, length: int) -> bool:
    found.text, found.changed = found.text[length:], True
    return True
