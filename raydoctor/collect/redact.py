"""Takes secrets out of what a capture is about to hold, and leaves in what a diagnosis needs.

A secret is recognised by its *shape* (`AKIA…`, a JSON web token, a private key), by the *name* that it is
assigned to (`--token X`, `"password": "X"`, `HF_KEY=X`, a header, a cookie, `env_vars` of a runtime
environment), by its *place* in a URL, or because the caller says so. A bare random string is none of these
and stays: Ray's ids, session names, hashes of wheels and of commits are random strings too, and are what
evidence is made of. That is why nothing here measures entropy, and why this is not `detect-secrets` (1.5):
of 300 kB of Ray's logs its line scanner calls 23,000 strings secrets of high entropy, at 0.14 MB/s, and of a
private key it finds the first line.

Speed comes from looking for reasons to look: some literals (`bytes.find`), and runs of 20 characters that
may be a token, which are found in a translated copy, where such a run is a literal too. Only lines that give
a reason see a regular expression.
"""

from __future__ import annotations

import base64
import bisect
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from raydoctor._pattern import pattern

_CHUNK = 1 << 20
_LONG = 1 << 20
"""A line longer than this is not waited for: it is redacted window by window."""
_OVERLAP = 1 << 16
"""What is seen on both sides of a cut in a long line: more than any secret with its name."""
_SHORT = 8
"""A literal shorter than this counts only where it stands alone, and below `_TINY` not at all."""
_TINY = 4

_HELD = rb"<secret:[a-z0-9-]+-\d+>"
_PLACEHOLDER = pattern(_HELD)
_PLACEHOLDER_BEFORE = pattern(_HELD + rb"$")


class _Span(NamedTuple):
    """What goes, and what it is called."""

    start: int
    end: int
    kind: str


class _State:
    """What a line leaves to the lines after it."""

    def __init__(self) -> None:
        self.key_lines = 0
        """How many more lines may belong to a private key that began and has not ended."""
        self.kind = ""
        """The kind of secret whose value is on the next line (`- name: HF_TOKEN`)."""
        self.certain = False
        self.value = _NEXT_VALUE
        """How that line holds it."""

    def __bool__(self) -> bool:
        return bool(self.key_lines or self.kind)


# ---------------------------------------------------------------- shapes

_SHAPES: Mapping[str, str] = {
    "aws_key": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])",
    "gcp_key": r"AIza[\w-]{35}",
    "gcp_oauth": r"(?:ya29\.|1//0|GOCSPX-)[\w-]{20,}",
    "github": r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    "gitlab": r"gl(?:pat|ptt|dt|rt|cbt|agent|soat|ft|imt|oas|ffct)-[\w-]{20,}",
    "huggingface": r"(?:hf_|api_org_)[A-Za-z0-9]{20,}",
    "anthropic": r"sk-ant-[\w-]{20,}",
    "openai": r"(?:sk|sess)-(?=[\w-]{0,200}\d)[\w-]{20,}",
    "slack": r"(?:xox[a-z](?:\.xox[a-z])?|xapp)-[A-Za-z0-9-]{10,}",
    "slack_webhook": r"(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/+-]{20,}",
    "stripe": r"(?:[sr]k_(?:live|test|prod)|whsec)_[A-Za-z0-9]{16,}",
    "twilio": r"SK[0-9a-f]{32}(?![A-Za-z0-9])",
    "sendgrid": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "npm": r"npm_[A-Za-z0-9]{30,}",
    "pypi": r"pypi-[\w-]{30,}",
    "databricks": r"dapi[0-9a-f]{32}(?:-\d+)?",
    "wandb": r"wandb_v1_\w{20,}",
    "jwt": r"eyJ[\w-]{8,1000}(?:\.[\w-]{8,}){1,4}(?:\.[\w-]*)?",
    "vault": r"hv[sbr]\.[\w-]{20,}",
    "doppler": r"dp\.(?:st|pt|ct|sa|scim|audit)\.(?:[\w-]+\.)?[A-Za-z0-9]{30,}",
    "age_key": r"AGE-(?:SECRET-KEY|PLUGIN-[A-Z]+)-[0-9A-Z]{40,}",
    "terraform": r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}",
    "newrelic": r"NR(?:AK|RA|II|JS)-[A-Za-z0-9-]{20,}",
    "nvidia": r"nvapi-[\w-]{20,}",
    "groq": r"gsk_[A-Za-z0-9]{20,}",
    "xai": r"xai-[A-Za-z0-9]{20,}",
    "perplexity": r"pplx-[A-Za-z0-9]{20,}",
    "replicate": r"r8_[A-Za-z0-9]{30,}",
    "langsmith": r"lsv2_(?:pt|sk)_\w{20,}",
    "pinecone": r"pcsk_\w{20,}",
    "anyscale": r"(?:esecret_|aph0_|ash0_)[\w-]{20,}",
    "docker": r"(?:dckr_pat_|dckr_oat_|SWMTKN-1-)[\w-]{20,}",
    "grafana": r"gl(?:sa|c)_[A-Za-z0-9_+/=]{30,}",
    "digitalocean": r"do[opr]_v1_[0-9a-f]{40,}",
    "pulumi": r"pul-[0-9a-f]{40}",
    "tailscale": r"tskey-[\w-]{20,}",
    "sentry": r"sntry[su]_[\w+/=-]{30,}",
    "postman": r"PMAK-[0-9a-f-]{40,}",
    "shopify": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "atlassian": r"AT(?:ATT3|CTT3|BB)[\w=-]{20,}",
    "linear": r"lin_(?:api|oauth)_\w{30,}",
    "supabase": r"sbp_[0-9a-f]{40}",
    "notion": r"(?:ntn|secret)_[A-Za-z0-9]{40,}",
    "telegram": r"\d{8,10}:AA[\w-]{33}(?![\w-])",
    "azure_key": r"[A-Za-z0-9+/]{86}==(?![A-Za-z0-9=])|[\w~.-]{3}[78]Q~[\w~.-]{31,34}",
    "ssh_key": r"b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=]+",
}
"""Kind (`_` for `-`) and pattern of what its issuer gave a shape that nothing of Ray's has."""

_NOT_INSIDE = (
    # At the begin of a word; an escape or a colour before it is no part of the word.
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x00)|(?<=\\u0000)"
    r"|(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm))"
)


@cache
def _shapes() -> re.Pattern[bytes]:
    named = "|".join(f"(?P<{kind}>{shape})" for kind, shape in _SHAPES.items())
    return re.compile(f"{_NOT_INSIDE}(?:{named})".encode())


@cache
def _any_shape() -> re.Pattern[bytes]:
    """A cheaper one that accepts whatever `_shapes` does: without names and without what stands before."""
    return re.compile("|".join(_SHAPES.values()).encode())


_KEY_BEGIN = rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_KEY_END = rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_KEY_LINES = 20
"""After so many lines of others, a key that began and did not go on is over."""
_PRIVATE_KEY = pattern(
    _KEY_BEGIN + rb"(?:(?P<body>.*?)(?P<end>" + _KEY_END + rb")|(?P<cut>[\w+/=\\:,\s-]*))",
    re.DOTALL,
)
_KEY_ENDS = pattern(_KEY_END)
_KEY_RUN = pattern(rb"(?P<s>[A-Za-z0-9+/=]{40,})")
_KEY_LAST = pattern(
    # The short last line of a body: alone on its line, or no word and behind a prefix that others write.
    rb"(?:[\s\"']*|.*[\])|m:]\s+(?=\S*[=\d]|\S*[a-z][A-Z]))"
    rb"(?P<s>[A-Za-z0-9+/]{2,76}={0,2})(?:\\[nr])*\\*[\"',]*\s*$"
)

# ---------------------------------------------------------------- places

_URL = pattern(
    rb"[A-Za-z][A-Za-z0-9+.-]{0,40}:(?:\\?/){2}(?P<user>[^\s/:@\"'<>?#]{0,500})"
    rb"(?::(?P<password>[^\s\"'<>/?#]{0,500}|(?!\d{1,5}/)[^\s\"'<>@]{0,500}))?@(?=[\w\[.$%-])"
)
_PLACES = tuple(
    (kind, word, pattern(place))
    for kind, word, place in (
        (
            "token",
            b"bearer",
            rb"(?i)\bbearer(?:\s|%20)+(?P<s>(?=[a-z._~+/=-]*[\d=])[\w.~+/=-]{8,}|[\w.~+/=-]{20,})",
        ),
        (
            "password",
            b"basic",
            rb"(?i)\bbasic(?:\s|%20)+(?P<s>(?=[a-z/+]*[\d=])[\w+/-]{8,}={0,2}|[\w+/-]{20,}={0,2})",
        ),
        ("password", b"jdbc", rb"\bjdbc:oracle:\w+:[^/\s]{1,200}/(?P<s>[^@\s]+)@"),
        ("password", b"login", rb"\blogin\s+\S{1,200}\s+password\s+(?P<s>[^\s<]\S*)"),
        ("password", b"sshpass", rb"\bsshpass\s+-p\s*[\"']?(?P<s>[^\s<\"']+)"),
        ("password", b"requirepass", rb"\brequirepass\s+[\"']?(?P<s>[^\s<\"']+)"),
        (
            "password",
            b"curl",
            rb"\bcurl\b.{0,500}?\s(?:-u|--user|--proxy-user)[\s=]*\\*[\"']?[^\s:\"']{1,200}:(?P<s>[^\s<\"']+)",
        ),
        (
            "password",
            b"</",
            rb"(?i)<[\w:.-]*(?:password|secret|token|apikey)>(?P<s>[^<\s][^<]*)</",
        ),
        (
            "aws-secret",
            b"ia",
            rb"(?:AKIA|ASIA)[A-Z2-7]{16}[\"'\s,:/]{1,4}(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        ),
    )
)
"""Kind, a literal that the line holds in lower case, and where the secret stands."""

# ---------------------------------------------------------------- names

_QUOTE = rb"\\*[\"']"
_OPEN = rb"[^\s\"'`,;&|)\]}<>\0\\]"
_BARE = (
    # A value without quotes ends at a blank or a closer, unless the closer is part of it: what follows it is
    # neither the end nor the next name.
    _OPEN + rb"(?:" + _OPEN + rb"|[<>]|\\(?![nrtx0u\"'\\])"
    rb"|[,;&|)\]}\"'](?![\w.-]+\\*[\"']?\s*[=:])(?=" + _OPEN + rb"))*"
)
_SCHEME = rb"(?:(?i:bearer|basic|token|apikey|digest|negotiate)(?:\s|%20)+)?"
_VALUE = (
    rb"(?:[bBrRuUfF]{0,2}(?P<vq>" + _QUOTE + rb")" + _SCHEME + rb"(?P<quoted>.*?)"
    rb"(?:(?<!\\)(?P=vq)|$)|" + _SCHEME + rb"(?P<bare>" + _HELD + rb"|" + _BARE + rb"))"
)
_ASSIGNED = pattern(
    rb"(?<![\w.-])(?P<name>[\w-][\w.-]{0,199})(?![\w.-])(?P<nq>" + _QUOTE + rb")?(?:"
    rb"\]?\s*(?P<sep>:\s*(?:str|bytes|Optional\[str\]|str \| None|SecretStr)\s*=|:=|=>|!?={1,3}|:)\s*"
    rb"|(?P<encoded>%3[DdAa])"
    rb"|(?P<pair>\s*,\s*)(?=[bru]?" + _QUOTE + rb")"
    rb"|(?P<blank>\s+|\0)(?!-))" + _VALUE
)
_HINT = pattern(
    rb"(?:token|secret|pass|pwd|credential|key|auth|cookie|sig|bearer|pat|jwt|dsn|sas|string)[\w.-]*"
    rb"(?:" + _QUOTE + rb")?\]?\s*(?:[=:,!%\0]|" + _QUOTE + rb")|-\w[\w.-]*[\s\0]"
)
"""What a line in lower case holds if `_ASSIGNED` may find a secret's name in it."""
_NAMED_PAIR = pattern(
    rb"(?i)(?<![\w-])(?:name|key)" + _QUOTE + rb"?\s*[:=]\s*(?:" + _QUOTE + rb")?(?P<name>[\w.-]{1,200})"
    rb"(?:" + _QUOTE + rb")?\s*,?\s*(?:(?P<next>$)|(?:" + _QUOTE + rb")?value" + _QUOTE + rb"?\s*[:=]\s*"
    + _VALUE + rb")"
)  # fmt: skip
_NEXT_VALUE = pattern(rb"(?i)^\s*(?:" + _QUOTE + rb")?value" + _QUOTE + rb"?\s*:\s*" + _VALUE)
_BLOCK_SCALAR = pattern(rb"^\s*(?:- )?(?P<name>[\w.-]{1,200}):\s*(?P<next>[|>][+-]?)\s*$")
_INDENTED = pattern(rb"^\s+(?P<bare>\S.*?)\s*$")
_COOKIE = pattern(
    rb"(?i)(?<![\w-])(?:set-)?cookies?" + _QUOTE + rb"?\s*[:=]\s*(?:" + _QUOTE + rb")?"
    rb"(?P<s>[^\s\"'\0<{=]+=[^\"'\0\r\\]+)"
)
_ENV_VARS = pattern(rb"env_vars" + _QUOTE + rb"?\s*[=:]\s*\{")
_ENV_PAIR = pattern(
    rb"[\s,]*" + _QUOTE + rb"[^\"'\\]*" + _QUOTE + rb"\s*:\s*"
    rb"(?:(?P<vq>" + _QUOTE + rb")(?P<quoted>.*?)(?:(?<!\\)(?P=vq)|$)|(?P<bare>[^\s,}\"']+))"
)

_CERTAIN = (
    ("password", ("password", "passwd", "passphrase", "pwd")),
    ("credential", ("credential", "credentials", "connectionstring")),
    ("secret", ("secret", "secrets", "secretid", "clientsecret", "jwt", "secretstr")),
    ("token", ("token", "authorization", "bearer")),
    ("cookie", ("cookie", "cookies")),
    (
        "key",
        tuple(
            f"{of}key{ending}"
            for of in (
                *("api", "access", "secret", "private", "encryption", "signing", "account", "auth"),
                *("license", "routing", "integration", "storage", "ssh", "master", "sharedaccess"),
                *(
                    "consumer",
                    "deploy",
                    "application",
                    "app",
                    "subscription",
                    "service",
                    "ingestion",
                ),
                *("client", "sas", "fernet", "write", "instrumentation"),
            )
            for ending in ("", "s", "id", "base", "base64")
        ),
    ),
)
"""Endings of names, lower-case and without punctuation, that hold a secret whatever its shape."""
_LIKELY = pattern(
    r"(?:^|[_.\-])(?:pass|pat|sig|auth|key|apikeys?|dsn|sas)$|signature$|sessionid$|tokens$",
    re.IGNORECASE,
)
"""Names that also hold other things, so that the value has to look like a secret."""
_LOUD_KEY = pattern(r"[A-Z][A-Z0-9_]*_(?:KEY|KEYS|PASS|AUTH|PAT)$|^-.*-key$")
"""How an environment and an option name a secret."""
_NOT_SECRET = pattern(
    # What a model or a parser calls a token, and what pages through a list.
    r"(?:pad|eos|bos|unk|cls|sep|mask|image|video|audio|num|max|min|next|continuation|page|start|end|stop|"
    r"special|per|cancellation|cluster|prompt|first|last|output|input|draft|new|generated|this|each|"
    r"resume|sync|fencing|startup|public|host)(?:token|key|keyid)$"
    r"|^(?:unexpected|invalid|missing|expired|unknown|bad|wrong|nosuch|no|public|foreign|primary|partition|sort)"
    r"|(?:bypass|compass)$"
)
_PLAIN = pattern(
    rb"(?i:none|null|nil|nan|true|false|yes|no|on|off|undefined|str|string|bytes|int|bool|unset|empty|required|"
    rb"enabled|disabled|missing|incorrect|invalid|token|hidden|masked|x+|\*+|\.+|-+|optional\[.*|"
    rb"\[?\W?(?:redacted|filtered|removed)\W?\]?)"
    rb"|\$(?:[A-Z_][A-Z0-9_]*|[{(].*)|%\(\w+\)s|%s|\{\w*\}?|<[^<>]*>|\d{1,6}"
)
_CODE = pattern(rb"(?:self|os|cls|args|config|settings|kwargs)\.[a-z_.]+.*|[a-z_][a-z_.]*\(.*")
_PATH = pattern(
    rb"(?:~|\.{1,2})?/(?:tmp|home|root|etc|var|opt|usr|mnt|run|secrets?|data|dev|Users)(?:/.*)?"
    rb"|(?:~|\.{1,2})?(?:/?[\w.-]+/)*[\w-]+\.(?:pem|json|key|crt|cer|ya?ml|txt|toml|ini|cfg|py)(?::\d+)?|~/.*"
)
_RANDOM = pattern(rb"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=.~%-]{12,}")
_ORDINARY = pattern(
    rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:[0-9a-f]{4})+|session_[\d_-]+|[\w.-]*:\d+|[\d.:TZ+-]+"
    rb"|/.*|[a-z_.]+\d{0,4}"
)
_PROSE = frozenset(
    b"a an and as at be by can cannot could does for from has have if in into is it must not of on or please "
    b"should that the this to use used value was were when which will with you your".split()
)


@lru_cache(maxsize=4096)
def _kind_of_name(name: str) -> tuple[str, bool]:
    """What a name holds (empty: no secret), and whether that is certain without seeing the value."""
    if len(name) < 3:
        return "", False
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    if _NOT_SECRET.search(bare):
        return "", False
    for kind, endings in _CERTAIN:
        if bare.endswith(endings):
            return kind, True
    if _LOUD_KEY.search(name):
        return "key", True
    return ("key", False) if _LIKELY.search(name) or bare.endswith("key") else ("", False)


def _looks_secret(value: bytes) -> bool:
    """Whether a value that may be one looks like a secret and like none of Ray's ids."""
    return bool(_RANDOM.match(value)) and not _ORDINARY.fullmatch(value)


def _holds(value: bytes, certain: bool) -> bool:
    """Whether a value whose name stands elsewhere is a secret; a placeholder and its rest were judged."""
    if _PLACEHOLDER.match(value.lstrip(b"\"'")):
        return False
    return not _is_plain(value, "value") and (certain or _looks_secret(value))


def _is_plain(value: bytes, name: str, bare: bool = False) -> bool:
    """Whether a value says that there is none, or where it comes from (a path, a variable, bare code)."""
    if (
        not value
        or _PLACEHOLDER.fullmatch(value)
        or _PLAIN.fullmatch(value)
        or _PATH.fullmatch(value)
    ):
        return True
    if not bare:
        return False
    own = name.lower().strip("-_").replace("-", "_")
    word = value.decode("ascii", "replace").lower().replace(".", "_")
    return bool(_CODE.fullmatch(value)) or (word.endswith(own) and word.isidentifier())


# ---------------------------------------------------------------- reasons to look

_WORDS = tuple(
    b"token secret pass pwd credential key auth cookie signature sig= bearer _pat env_vars curl @".split()
)
"""In lower case; each line that holds one is looked at."""
_RUN = b"a" * 20
_RUNS = bytes(97 if (c < 128 and chr(c).isalnum()) or c in b"_-" else 32 for c in range(256))
_ONLY_ID = pattern(
    # Ids, snake_case, UPPER_CASE and settings (RAY_memory_usage_threshold), CamelCase, dashboard threads.
    rb"(?:(?:worker-|session_|node_|(?:CPU|bundle)_group_)?[0-9a-f_-]{20,}|[a-z_-]{20,}|(?:[A-Z]{2,}_)+[A-Za-z_]+"
    rb"|(?:t?ray-dashboard-)?(?:[A-Z]{1,3}[a-z]{2,})+[A-Z]{0,3}(?:-\d+)?)(?![\w-])"
)
"""Runs that need no second look; a token of 20 random characters or more does not look like one."""
_JOINTS = frozenset((b".", b"/", b":", b"+", b"=", b"~"))
_AROUND = 96
"""How far parts of one token, joined by a character that is in no run, may reach."""


def _worded(block: bytes) -> Iterator[int]:
    """Offsets of words that may name a secret or begin a place of one, at least one a line."""
    lower = block.lower()
    for word in _WORDS:
        at = lower.find(word)
        while at >= 0:
            yield at
            at = lower.find(b"\n", at)
            at = lower.find(word, at) if at >= 0 else -1


def _shaped(block: bytes) -> Iterator[int]:
    """Offsets of runs that may be a token, or belong to one."""
    runs = block.translate(_RUNS)
    find, search, is_id = runs.find, _any_shape().search, _ONLY_ID.match
    at = find(_RUN)
    while at >= 0:
        end = find(b" ", at)
        end = len(block) if end < 0 else end
        if not is_id(block, at):
            # Of `SG.x.y` and web tokens other parts tell what the run is.
            begin = max(0, at - _AROUND) if block[at - 1 : at] in _JOINTS else at
            if search(block, begin, end + _AROUND if block[end : end + 1] in _JOINTS else end):
                yield at
        at = find(_RUN, end)


# ---------------------------------------------------------------- spans of a line


def _line_spans(line: bytes, state: _State, shaped: bool) -> Iterator[_Span]:
    """Everything in a line that is a secret; spans may overlap, those of shapes come first."""
    if state.key_lines or b"PRIVATE KEY" in line:
        yield from _key_spans(line, state)
    if shaped:
        for match in _shapes().finditer(line):
            yield _Span(*match.span(), str(match.lastgroup).replace("_", "-"))
    if b"@" in line:
        yield from _url_spans(line)
    lower = line.lower()
    for kind, word, place in _PLACES:
        if word in lower:
            yield from (_Span(*match.span("s"), kind) for match in place.finditer(line))
    yield from _next_line_spans(line, state)
    yield from _name_spans(line)
    if b"value" in lower:
        yield from _pair_spans(line)
    if b"cookie" in lower:
        yield from _cookie_spans(line)
    for match in _ENV_VARS.finditer(line):
        yield from _env_spans(line, match.end())


def _key_spans(line: bytes, state: _State) -> Iterator[_Span]:
    """A private key, on one line or line by line; the markers stay."""
    if state.key_lines:
        ends = _KEY_ENDS.search(line)
        body = list(_KEY_RUN.finditer(line, 0, ends.start() if ends else len(line)))
        if not body and not ends and (last := _KEY_LAST.match(line)):
            body = [last]
        for match in body:
            yield _Span(*match.span("s"), "private-key")
        state.key_lines = 0 if ends else _KEY_LINES if body else state.key_lines - 1
    for match in _PRIVATE_KEY.finditer(line):
        start, end = match.span("body" if match["end"] else "cut")
        if line[start:end].strip(b"\\nr \"'") and not _PLACEHOLDER.fullmatch(line, start, end):
            yield _Span(start, end, "private-key")
        state.key_lines = 0 if match["end"] else _KEY_LINES


def _url_spans(line: bytes) -> Iterator[_Span]:
    for match in _URL.finditer(line):
        user, password = match["user"], match["password"]
        if password and not _is_plain(password, "password"):
            yield _Span(*match.span("password"), "url-password")
        if len(user) >= 16 and _RANDOM.fullmatch(user):
            yield _Span(*match.span("user"), "url-token")


def _value_span(match: re.Match[bytes]) -> tuple[int, int]:
    return match.span("bare") if match["bare"] is not None else match.span("quoted")


def _name_spans(line: bytes) -> Iterator[_Span]:
    """Values of names that hold secrets."""
    at = 0 if _HINT.search(line.lower()) else len(line)
    while match := _ASSIGNED.search(line, at):
        name = match["name"].decode("ascii", "replace")
        kind, certain = _kind_of_name(name)
        if held := _PLACEHOLDER.match(line, match.start() - 1):
            at = held.end()
            continue
        if name.startswith("-") and _PLACEHOLDER_BEFORE.search(line[: match.start()][-60:]):
            at = match.end("name")  # glued to a placeholder, as it was to a secret: no option
            continue
        # What is no secret may hold the next name: `config="token=X"`, `x: token: X`.
        at = match.end("name") + 1
        if kind and _is_assigned(match, line, name, certain):
            start, end = _value_span(match)
            if match["sep"] == b"=" and _begins_entry(line, match.start()):
                end = max(end, _next_null(line, end))
            yield _Span(start, end, kind)
            at = max(at, end)


def _pair_spans(line: bytes) -> Iterator[_Span]:
    """Of `{"name": "HF_TOKEN", "value": "X"}` the value."""
    for match in _NAMED_PAIR.finditer(line):
        kind, certain = _kind_of_name(match["name"].decode("ascii", "replace"))
        value = _value_span(match)
        if kind and match["next"] is None and _holds(line[slice(*value)], certain):
            yield _Span(*value, kind)


def _begins_entry(line: bytes, at: int) -> bool:
    """Whether an entry of an environment dump (`A=1`, NUL, `B=2`) may begin here."""
    return at == 0 or line[at - 1] == 0


def _next_null(line: bytes, end: int) -> int:
    """Where an entry of an environment dump ends; -1 if this is none."""
    if b"\0" not in line:
        return -1
    at = line.find(b"\0", end)
    return at if at >= 0 else len(line)


def _is_assigned(match: re.Match[bytes], line: bytes, name: str, certain: bool) -> bool:
    """Whether name, separator and value together say that the value is a secret."""
    start, end = _value_span(match)
    value = line[start:end]
    bare = match["bare"] is not None
    if _is_plain(value, name, bare):
        return False
    if match["blank"] is not None:
        is_option = name.startswith("-") or match["nq"] is not None
        if not is_option or value.lower() in _PROSE:
            return False
    if match["pair"] is not None and match["nq"] is None:
        return False
    if not certain:
        return _looks_secret(value) or (
            name.lower().endswith(("sig", "signature")) and len(value) > 15
        )
    if bare and match["sep"] == b":" and match["nq"] is None:
        return _is_said(match, line, name, value)
    return True


def _is_said(match: re.Match[bytes], line: bytes, name: str, value: bytes) -> bool:
    """Of `token: word` without quotes: a line of YAML, a header, or a word that is no word."""
    before = line[: match.start()]
    if name.lower() == "token" and before.endswith((b" ID ", b" id ")):
        return False
    if name.lower().endswith("secret"):
        value = value.replace(b"-", b"")  # the name of one, as Kubernetes gives it
    is_word = value.isalpha() and (value[1:].islower() or value.isupper()) and len(value) < 20
    if not is_word or name.lower().endswith("authorization"):
        return True
    alone = not line[match.end() :].strip(b" \t\r,#")
    return alone and not before.strip(b" \t-{")


def _next_line_spans(line: bytes, state: _State) -> Iterator[_Span]:
    """A value on the line after its name: `- name: HF_TOKEN`, `password: |`."""
    if state.kind and (match := state.value.match(line)):
        start, end = _value_span(match)
        if _holds(line[start:end], state.certain):
            yield _Span(start, end, state.kind)
    state.kind = ""
    if b":" not in line:
        return
    for shape, value in ((_BLOCK_SCALAR, _INDENTED), (_NAMED_PAIR, _NEXT_VALUE)):
        found = shape.search(line)
        if found and found["next"] is not None:
            kind, certain = _kind_of_name(found["name"].decode("ascii", "replace"))
            state.kind, state.certain, state.value = kind, certain, value


def _cookie_spans(line: bytes) -> Iterator[_Span]:
    """All that a cookie holds: which of its parts is the session's, only the server knows."""
    for match in _COOKIE.finditer(line):
        if b"<secret:" not in match["s"]:
            yield _Span(*match.span("s"), "cookie")


def _env_spans(line: bytes, at: int) -> Iterator[_Span]:
    """Every value of the flat mapping that begins at `at`."""
    while match := _ENV_PAIR.match(line, at):
        start, end = match.span("bare") if match["bare"] is not None else match.span("quoted")
        if start < end:
            yield _Span(start, end, "env")
        at = match.end()


# ---------------------------------------------------------------- addresses

_IPV4 = pattern(rb"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV4_DASHED = pattern(rb"(?<![\w.-])ip-\d{1,3}(?:-\d{1,3}){3}(?:\.[a-z][\w.-]*[a-z])?(?![\w-])")
_IPV6 = pattern(
    rb"(?<![\w:.)>])(?=[0-9A-Fa-f]*:)(?:[0-9A-Fa-f]{0,4}:){2,7}"
    rb"(?:[0-9A-Fa-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])"
)
_VERSION_BEFORE = pattern(rb"(?i)(?:[=<>~!]=|[<>]|version[\"'\s:=]{0,4}|\bv|\bray |[a-z0-9]-)$")


def _address_spans(block: bytes, hosts: re.Pattern[bytes] | None) -> Iterator[_Span]:
    """Addresses and names of hosts, but for those that every machine has."""
    for match in _IPV4.finditer(block):
        before = block[max(0, match.start() - 12) : match.start()]
        if _is_someones(match[0]) and not _VERSION_BEFORE.search(before):
            yield _Span(*match.span(), "ip")
    for match in _IPV6.finditer(block):
        if any(digit in match[0] for digit in b"0123456789") and _is_someones(match[0]):
            yield _Span(*match.span(), "ip")
    for shape in (_IPV4_DASHED, hosts):
        for match in shape.finditer(block) if shape else ():
            yield _Span(*match.span(), "host")


@lru_cache(maxsize=4096)
def _is_someones(address: bytes) -> bool:
    try:
        ip = ipaddress.ip_address(address.decode())
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_unspecified or address.startswith(b"255.255."))


def _any_of(words: Iterable[str]) -> re.Pattern[bytes] | None:
    listed = sorted(
        {w.encode() for w in words if w not in ("", "localhost")}, key=len, reverse=True
    )
    named = b"|".join(re.escape(word) for word in listed)
    return re.compile(rb"(?<![\w.-])(?:" + named + rb")(?![\w-])") if listed else None


# ---------------------------------------------------------------- literal secrets


def _variants(secret: str) -> Iterator[bytes]:
    """A secret as it may be written: plain, in JSON, in a repr, in a URL, inside base64."""
    for line in secret.splitlines():
        plain = line.strip()
        if len(plain) < _TINY:
            continue
        raw = plain.encode("utf-8", "surrogateescape")
        yield raw
        yield json.dumps(plain)[1:-1].encode()
        yield json.dumps(plain, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
        yield repr(plain)[1:-1].encode("utf-8", "surrogateescape")
        yield quote(raw, safe="").encode()
        if len(raw) >= 2 * _SHORT:
            # Where the secret begins in a group of three bytes decides what it looks like; the characters
            # that its neighbours share are left out.
            for skip, lost in ((0, 0), (1, 2), (2, 3)):
                coded = base64.b64encode(b"\0" * skip + raw).rstrip(b"=")
                yield coded[lost : len(coded) - ((skip + len(raw)) % 3 > 0)]


def _literal_spans(block: bytes, literals: Mapping[bytes, bytes]) -> Iterator[_Span]:
    for literal in literals:
        at = block.find(literal)
        while at >= 0:
            end = at + len(literal)
            around = block[max(0, at - 1) : at] + block[end : end + 1]
            if len(literal) >= _SHORT or not re.search(rb"\w", around):
                yield _Span(at, end, "given")
            at = block.find(literal, end)


# ---------------------------------------------------------------- the redactor


class Redactor:
    """Replaces secrets by placeholders: `<secret:aws-key-1>`; the same secret by the same one.

    One redactor serves one capture: its placeholders are numbered in order of first appearance and hold
    nothing of what they stand for. What it did once it leaves alone the second time. With `anonymize`,
    addresses and `hosts` become `ip-1` and `host-1`. It does no I/O and keeps what it saw in memory only.
    """

    def __init__(
        self, secrets: Iterable[str] = (), anonymize: bool = False, hosts: Iterable[str] = ()
    ) -> None:
        # The longest first: of two that overlap, the one that holds more goes.
        known = {v: s.encode("utf-8", "surrogateescape") for s in secrets for v in _variants(s)}
        self._literals = {v: known[v] for v in sorted(known, key=len, reverse=True)}
        self._anonymize = anonymize
        self._hosts = _any_of(hosts) if anonymize else None
        self._known: dict[tuple[bool, bytes], bytes] = {}
        self._numbers: Counter[str] = Counter()
        self._spots: Counter[str] = Counter()

    @property
    def summary(self) -> dict[str, int]:
        """How many spots of each kind were replaced so far."""
        return dict(sorted(self._spots.items()))

    def redact(self, text: str) -> str:
        """The text without its secrets; lines stay lines."""
        data = text.encode("utf-8", "surrogatepass")
        return self.redact_bytes(data).decode("utf-8", "surrogatepass")

    def redact_bytes(self, data: bytes) -> bytes:
        """What `redact` does, for bytes of any encoding that contains ASCII."""
        return b"".join(
            self.redact_stream(data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))
        )

    def redact_stream(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """What `redact_bytes` does, for a file that does not fit in memory, however it is cut."""
        state, buffer, seen, limit = _State(), b"", 0, _LONG
        for chunk in chunks:
            buffer += chunk
            cut = buffer.rfind(b"\n") + 1
            if cut:
                yield self._block(buffer[:cut], state, seen)
                buffer, seen, limit = buffer[cut:], 0, _LONG
            elif len(buffer) - seen > limit:
                spans = self._spans(buffer, state)
                cut = _safe_cut(spans, len(buffer) - _OVERLAP)
                if cut <= seen:
                    limit *= 2  # one secret so far: wait for its end
                    continue
                yield self._replaced(buffer, spans, seen, cut)
                kept = max(0, cut - _OVERLAP)
                buffer, seen, limit = buffer[kept:], cut - kept, _LONG
        if buffer:
            yield self._block(buffer, state, seen)

    def redact_json(self, value: Any) -> Any:
        """A value made of dicts, lists and scalars without its secrets; JSON inside a string is read too."""
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return list(self._items(value))
        if isinstance(value, str):
            return self._string(value)
        return value

    # -------- text

    def _block(self, block: bytes, state: _State, seen: int = 0) -> bytes:
        spans = self._spans(block, state)
        return self._replaced(block, spans, seen, len(block)) if spans else block[seen:]

    def _spans(self, block: bytes, state: _State) -> list[_Span]:
        """The disjoint spans of whole lines, in order."""
        found = list(_literal_spans(block, self._literals))
        shaped = {block.rfind(b"\n", 0, at) + 1 for at in _shaped(block)}
        starts = sorted(shaped.union(block.rfind(b"\n", 0, at) + 1 for at in _worded(block)))
        at = 0 if state else _first(starts, 0)
        while 0 <= at < len(block):
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            for start, stop, kind in _line_spans(block[at:end], state, at in shaped):
                found.append(_Span(at + start, at + stop, kind))
            at = end + 1 if state else _first(starts, end)
        if self._anonymize:
            found.extend(_address_spans(block, self._hosts))
        return _merged(found, block) if found else found

    def _replaced(self, block: bytes, spans: list[_Span], begin: int, end: int) -> bytes:
        """The block from `begin` to `end` with the spans replaced."""
        parts, at = [], begin
        for span in spans:
            if at <= span.start < end or span.start < at < span.end:
                parts.append(block[at : max(at, span.start)])
                parts.append(self._stand_in(block[span.start : span.end], span.kind))
                at = span.end
        return b"".join((*parts, block[at:end]))

    def _stand_in(self, secret: bytes, kind: str) -> bytes:
        """What stands where the secret stood."""
        secret = self._literals.get(secret, secret)
        is_address = kind in ("ip", "host")
        self._spots[kind] += 1
        key = (is_address, secret)
        if key not in self._known:
            self._numbers[kind] += 1
            named = f"{kind}-{self._numbers[kind]}"
            self._known[key] = (named if is_address else f"<secret:{named}>").encode()
        return self._known[key]

    # -------- JSON

    def _mapping(self, value: dict[Any, Any]) -> dict[Any, Any]:
        named = str(value.get("name") or value.get("key") or "") if "value" in value else ""
        result = {}
        for key, inner in value.items():
            name = named if key == "value" and _kind_of_name(named)[0] else str(key)
            shown = self.redact(key) if isinstance(key, str) else key
            result[shown] = self._under(name, inner)
        return result

    def _items(self, values: Iterable[Any]) -> Iterator[Any]:
        """Of `["--token", "X"]` and `["Authorization", "Bearer X"]` the second is a secret."""
        listed = list(values)
        name = ""
        for value in listed:
            yield self._under(name, value) if name else self.redact_json(value)
            is_name = isinstance(value, str) and (value.startswith("-") or len(listed) == 2)
            name = (
                value
                if is_name and re.fullmatch(r"[\w.-]+", value) and _kind_of_name(value)[1]
                else ""
            )

    def _under(self, name: str, value: Any) -> Any:
        """A value whose name may say that it is a secret."""
        if name == "env_vars" and isinstance(value, dict):
            return {key: self._gone(inner, "env", name) for key, inner in value.items()}
        kind, certain = _kind_of_name(name)
        if certain or (kind and isinstance(value, str) and _looks_secret(value.encode())):
            return self._gone(value, kind, name)
        return self.redact_json(value)

    def _gone(self, value: Any, kind: str, name: str) -> Any:
        """Every scalar in a value replaced, but for what says that there is none."""
        if isinstance(value, dict):
            return {key: self._gone(inner, kind, name) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._gone(inner, kind, name) for inner in value]
        if value is None or isinstance(value, bool):
            return value
        data = str(value).encode("utf-8", "surrogatepass")
        if _PLACEHOLDER.fullmatch(data) or (kind != "env" and _is_plain(data, name)):
            return value
        return self._stand_in(data, kind).decode()

    def _string(self, value: str) -> str:
        if value[:1] in ("{", "["):
            try:
                inner = json.loads(value)
            except (ValueError, RecursionError):
                return self.redact(value)
            clean = self.redact_json(inner)
            return value if clean == inner else json.dumps(clean)
        return self.redact(value)


def _first(starts: list[int], after: int) -> int:
    """The first of the sorted offsets that is not below `after`, or -1."""
    at = bisect.bisect_left(starts, after)
    return starts[at] if at < len(starts) else -1


def _safe_cut(spans: list[_Span], cut: int) -> int:
    """The last place up to `cut` that is not within a secret."""
    for span in spans:
        if span.start < cut <= span.end:
            return span.start
    return cut


def _merged(spans: list[_Span], block: bytes) -> list[_Span]:
    """Disjoint spans in order: where some overlap, what they cover, called as the widest of them.

    What lies in a placeholder is none, so that redacting twice is redacting once.
    """
    held = [m.span() for m in _PLACEHOLDER.finditer(block)] if b"<secret:" in block else []
    kept: list[tuple[_Span, int]] = []
    # Sorting is stable: of equal spans the first rule's name stays.
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        if any(start <= span.start and span.end <= end for start, end in held):
            continue
        if kept and span.start < kept[-1][0].end:
            last, width = kept[-1]
            wider = span.end - span.start > width
            joined = _Span(last.start, max(last.end, span.end), span.kind if wider else last.kind)
            kept[-1] = (joined, max(width, span.end - span.start))
        elif span.end > span.start:
            kept.append((span, span.end - span.start))
    return [span for span, _ in kept]
