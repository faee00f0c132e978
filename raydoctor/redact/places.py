"""Secrets recognized by their place: in a URL, a command line, a call, a sentence, a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.redact import names, sentences
from raydoctor.redact.assigned import GAP, QUOTE
from raydoctor.redact.span import Span

_MAYBE = rb"(?:" + QUOTE + rb")?"
_WORD = rb"(?P<s>[^\s<\"'\\][^\s\"'\\]*)"


def _any(value: bytes) -> bool:
    return not names.is_plain(value, "value")


def _unlike_prose(value: bytes) -> bool:
    return _any(value) and value.lower().strip(b".,;:") not in names.PROSE


class SecretPlace(NamedTuple):
    """A place of a secret: group `s`; with a group `name`, only if that is the name of a secret."""

    kind: str
    words: tuple[bytes, ...]
    """Every line with such a place contains one of these lower-case words."""
    shape: re.Pattern[bytes]
    judge: Callable[[bytes], bool] = _any
    """Whether a value in that place is a secret."""


def _lists_secrets(value: bytes) -> bool:
    """Whether a list of strings holds a secret; the tokens of a text are words."""
    return any(names.looks_random(word) for word in _STRINGS.findall(value))


_STRINGS = pattern(rb"[^\s\"'\\,]{8,}")
_SEED_WORD = _MAYBE + rb"(?:\d{1,2}[.:)]\s?)?[a-z]{3,8}" + _MAYBE
"""A word of a wallet's list, in a list or numbered."""
_TO = rb"[^|;&\n]{0,300}?\s"

PLACES: tuple[SecretPlace, ...] = (
    # ---- headers
    SecretPlace(
        "token",
        (b"bearer",),
        pattern(
            rb"(?i)\bbearer(?:\s|%20)+(?P<s>(?=[a-z._~+/=-]*[\d=])[\w.~+/=-]{8,}|[\w.~+/=-]{20,})"
        ),
    ),
    SecretPlace(
        "password",
        (b"basic",),
        pattern(
            rb"(?i)\bbasic(?:\s|%20)+(?P<s>(?=[a-z/+]*[\d=])[\w+/-]{8,}={0,2}|[\w+/-]{20,}={0,2})"
        ),
    ),
    SecretPlace(
        "password",
        (b"digest",),
        pattern(rb"(?i)\bresponse" + _MAYBE + rb"=" + _MAYBE + rb"(?P<s>[0-9a-f]{32,})"),
    ),
    SecretPlace(
        "key",
        (b"sharedkey",),
        pattern(rb"(?i)\bsharedkey(?:lite)?\s+[\w.-]+:(?P<s>[\w+/=-]{20,})"),
    ),
    SecretPlace(
        "token",
        (b"authorization",),
        pattern(
            rb"(?i)authorization"
            + _MAYBE
            + rb"\s*[:=,]\s*"
            + _MAYBE
            + rb"(?:token\s+token=|[a-z][\w-]{1,30}\s+)"
            + _MAYBE
            + rb"(?P<s>(?=[^\s\"']*\d)[^\s\"'<]{16,})"
        ),
    ),
    SecretPlace(
        "signature",
        (b"mac=",),
        pattern(rb"(?i)(?<![a-z])h?mac=" + _MAYBE + rb"(?P<s>[\w+/]{32,}=?)"),
    ),
    SecretPlace(
        "token", (b"code=",), pattern(rb"[?&]code=(?P<s>[\w+/.~%-]{20,}=*)"), names.looks_secret
    ),
    SecretPlace(
        "webhook",
        (b"hook", b"key/"),
        pattern(
            rb"(?i)/(?:incomingwebhook|hooks/catch/\d{1,12}|with/key)/(?P<s>[\w-]{8,}(?:/[\w-]{8,})?)"
        ),
    ),
    # ---- command lines
    SecretPlace("password", (b"sshpass",), pattern(rb"\bsshpass\s+-p\s*" + _MAYBE + _WORD)),
    SecretPlace(
        "password",
        (b"curl",),
        pattern(
            rb"\bcurl\b.{0,500}?\s(?:-u|--user|--proxy-user)[\s=]*"
            + _MAYBE
            + rb"[^\s:\"']{1,200}:(?P<s>[^\s<\"']+)"
        ),
    ),
    SecretPlace(
        "password",
        (b"-p",),
        pattern(
            rb"\b(?:mysql\w*|mariadb[\w-]*|mycli|mongo\w*|cqlsh|sshpass|7za?|expect)\b"
            + _TO
            + rb"-p"
            + _MAYBE
            + _WORD
        ),
    ),
    SecretPlace(
        "password",
        (b"-p",),
        pattern(
            rb"\b(?:mysql\w*|mariadb[\w-]*|mongo\w*|cqlsh|login|sqlcmd|bcp|isql|tsql|zip|unzip|ldap\w+|influx|"
            rb"clickhouse[\w-]*|snowsql|rabbitmqadmin|kinit|ftp|lftp)\b"
            + _TO
            + rb"-[pP](?:\s+|=)"
            + _MAYBE
            + _WORD
        ),
        names.looks_chosen,
    ),
    SecretPlace(
        "password",
        (b"-w",),
        pattern(rb"\b(?:ldap\w+|net|winexe|psql)\b" + _TO + rb"-[wW](?:\s+|=)?" + _MAYBE + _WORD),
        names.looks_chosen,
    ),
    SecretPlace("password", (b"-pw",), pattern(rb"(?<!\S)-pw[\s=]+" + _MAYBE + _WORD)),
    SecretPlace(
        "password",
        (b"redis",),
        pattern(rb"\bredis-\w+\b" + _TO + rb"(?:-a|--pass)[\s=]+" + _MAYBE + _WORD),
    ),
    SecretPlace(
        "password",
        (b"-p",),
        pattern(rb"(?i)(?<![\w-])-pw?(?:\s+|=)" + _MAYBE + _WORD),
        names.looks_random,
    ),
    SecretPlace(
        "password",
        (b"-w",),
        pattern(rb"(?i)(?<![\w-])-w(?:\s+|=)" + _MAYBE + _WORD),
        names.looks_random,
    ),
    SecretPlace("password", (b"-p",), pattern(rb"(?<![\w-])-p" + _WORD), names.looks_random),
    SecretPlace(
        "password",
        (b"htpasswd",),
        pattern(
            rb"\bhtpasswd\s+(?:-\w+\s+){0,8}-(?=\w*b)\w+\s+(?:-\w+\s+){0,8}\S+\s+\S+\s+"
            + _MAYBE
            + _WORD
        ),
    ),
    SecretPlace(
        "password",
        (b" -a ", b" -u "),
        pattern(rb"\s-[aAuU]\s+" + _MAYBE + rb"[\w.@-]{1,100}:" + _WORD),
        names.looks_chosen,
    ),
    SecretPlace(
        "password",
        (b" -u ",),
        pattern(rb"\blftp\b" + _TO + rb"-u\s+" + _MAYBE + rb"[\w.@-]{1,100}," + _WORD),
    ),
    SecretPlace(
        "password",
        (b"ssh-keygen",),
        pattern(rb"\bssh-keygen\b" + _TO + rb"-[NP]\s+" + _MAYBE + _WORD),
    ),
    SecretPlace("password", (b"freerdp",), pattern(rb"freerdp\b" + _TO + rb"/p:" + _MAYBE + _WORD)),
    SecretPlace(
        "password", (b"snmp",), pattern(rb"\bsnmp\w+\b" + _TO + rb"-[AX]\s+" + _MAYBE + _WORD)
    ),
    SecretPlace(
        "key",
        (b"alias set",),
        pattern(rb"\bmc\s+alias\s+set\s+\S+\s+\S+\s+\S+\s+" + _MAYBE + _WORD),
    ),
    SecretPlace(
        "password", (b"setuser",), pattern(rb"(?i)\bsetuser\s{1,8}[^\n]{0,300}?\s>" + _WORD)
    ),
    SecretPlace(
        "password",
        (b"identified by",),
        pattern(rb"(?i)\bidentified\s+by\s+" + QUOTE + rb"(?P<s>[^\"'\\]+)"),
    ),
    SecretPlace("password", (b"%",), pattern(rb"(?<!\S)(?:-U|--user)[\s=]*[\w.\\/-]+%" + _WORD)),
    SecretPlace(
        "password",
        (b"--auth", b"--user", b"--cred", b"--basic", b"--proxy", b"--login"),
        pattern(
            rb"(?<!\S)--(?:auth|user|userpass|creds?|credentials?|basic-auth|proxy-user|login)[\s=]+"
            + _MAYBE
            + rb"[\w.@-]{1,100}:"
            + _WORD
        ),
        names.looks_chosen,
    ),
    SecretPlace(
        "password", (b"pass:",), pattern(rb"(?<![\w-])pass:(?=\S)" + _WORD), names.looks_chosen
    ),
    SecretPlace(
        "token",
        (b"et ",),
        pattern(
            rb"(?i)(?:^|[\s;&\"'+=])(?:set|setx|export|(?:configure|config) set|kv put|secrets? set)\s+"
            rb"(?:-{1,2}\w+\s+){0,3}(?P<name>[A-Za-z_][\w.-]*)\s+" + _MAYBE + _WORD
        ),
        _unlike_prose,
    ),
    SecretPlace(
        "token",
        (b"env ",),
        pattern(
            rb"(?:^|[\s\"'=])(?:ENV|ARG|setenv|unsetenv)\s+(?P<name>[A-Za-z_]\w*)\s+"
            + _MAYBE
            + _WORD
        ),
        _unlike_prose,
    ),
    SecretPlace(
        "token",
        (b"login",),
        pattern(
            rb"\b(?:vault|gh|hf|huggingface-cli|wandb|doppler|op|az|databricks)\s+(?:auth\s+)?login\s+(?:--\w+\s+)*"
            + _WORD
        ),
        names.looks_chosen,
    ),
    SecretPlace(
        "password", (b"auth",), pattern(rb"\bAUTH\s+(?:\w+\s+)?" + _WORD), names.looks_chosen
    ),
    SecretPlace(
        "password",
        (b"echo",),
        pattern(
            rb"\becho\s+(?:-n\s+)?"
            + _MAYBE
            + rb"(?P<s>[^\s\"'|]{4,200})"
            + _MAYBE
            + rb"\s*\|[^|\n]{0,200}?"
            rb"(?:\bsudo\s+-S|-stdin\b|\blogin\b|passwd\b)"
        ),
    ),
    SecretPlace("password", (b"openssl",), pattern(rb"\bopenssl\b" + _TO + rb"-k\s+" + _WORD)),
    # ---- calls
    SecretPlace(
        "password",
        (b"auth(", b"auth=", b"auth =", b'auth"', b"auth'", b"auth\\"),
        pattern(
            rb"(?i)auth(?:\w{0,100}"
            + GAP
            + rb"(?:=\s*)?\(|"
            + QUOTE
            + rb"\s*:\s*[\[(])\s*(?:user(?:name)?=)?"
            + QUOTE
            + rb"[^\"'\\]{0,200}"
            + QUOTE
            + rb"\s*,\s*(?:\w+\s*=\s*)?"
            + QUOTE
            + rb"(?P<s>[^\"'\\]+)"
        ),
    ),
    SecretPlace(
        "password",
        (b"password(",),
        pattern(
            rb"(?i)password\(\s*(?:"
            + QUOTE
            + rb"[^\"'\\]{0,200}"
            + QUOTE
            + rb"\s*,\s*)?"
            + QUOTE
            + rb"(?P<s>[^\"'\\]+)"
        ),
    ),
    SecretPlace(
        "key",
        (b"key",),
        pattern(
            rb"(?i)\b(?:\w*login|\w*auth\w*|configure|init|\w*client|setup|wandb\.\w+|comet\w*\.\w+)\([^()]{0,300}?"
            rb"(?<![\w.])key\s*=\s*" + QUOTE + rb"(?P<s>[^\"'\\]{8,})"
        ),
        lambda value: _any(value) and (names.looks_random(value) or len(value) >= 16),
    ),
    SecretPlace(
        "password",
        (b"login(",),
        pattern(
            rb"(?i)\blogin\(\s*(?:[\w.]{1,100}|"
            + QUOTE
            + rb"[^\"'\\\n]{1,200}"
            + QUOTE
            + rb")\s*,\s*"
            + QUOTE
            + rb"(?P<s>[^\"'\\\s]{6,})"
            + QUOTE
        ),
        names.looks_chosen,
    ),
    SecretPlace(
        "token",
        (b"login(",),
        pattern(rb"(?i)\blogin\(\s*" + QUOTE + rb"(?P<s>[^\"'\\\s]{8,})" + QUOTE + rb"\s*[,)]"),
        names.looks_chosen,
    ),
    SecretPlace(
        "secret",
        (b"secret",),
        pattern(
            rb"(?i)\bsecret(?:str|bytes|value|string)?\(\s*(?:\w+\s*=\s*)?b?"
            + QUOTE
            + rb"(?P<s>[^\"'\\*]+)"
        ),
    ),
    SecretPlace(
        "token",
        (b"token(", b"key(", b"credential", b"passphrase("),
        pattern(
            rb"(?i)\b\w*(?:token|api_?key|credentials?|passphrase)\(\s*(?:\w+\s*=\s*)?b?"
            + QUOTE
            + rb"(?P<s>[^\"'\\\s]+)"
        ),
        names.looks_random,
    ),
    SecretPlace(
        "key",
        (b"fernet(", b"hmac.new(", b"aes.new("),
        pattern(rb"(?i)\b(?:fernet|hmac\.new|aes\.new)\(\s*b?" + QUOTE + rb"(?P<s>[^\"'\\]{6,})"),
    ),
    SecretPlace(
        "key",
        (b"jwt.encode", b"jwt.decode", b"minio("),
        pattern(
            rb"(?i)\b(?:jwt\.(?:en|de)code\([^()\n]{0,500}?,|minio\(\s*"
            + QUOTE
            + rb"[^\"'\\]*"
            + QUOTE
            + rb"\s*,\s*"
            + QUOTE
            + rb"[^\"'\\]*"
            + QUOTE
            + rb"\s*,)\s*b?"
            + QUOTE
            + rb"(?P<s>[^\"'\\]{6,})"
        ),
        names.looks_chosen,
    ),
    # ---- phrases
    SecretPlace(
        "password",
        (b"phrase",),
        pattern(
            rb"(?i)\b\w*(?:pass[ _-]?phrase|seed[ _-]phrase|recovery[ _-]phrase)"
            + _MAYBE
            + rb"\s*(?:=|:|\bis\b)\s*"
            rb"(?P<s>[\w!@#$%^&*.,-]{1,60}(?: [\w!@#$%^&*.-]{1,60}){2,30})"
        ),
        lambda value: not names.PROSE & set(value.lower().split()),
    ),
    SecretPlace(
        "secret",
        (b"mnemonic", b"phrase", b"seed words"),
        pattern(
            rb"(?i)\b(?:mnemonic|(?:seed|recovery|wallet|secret)[ _-](?:phrase|words))"
            + _MAYBE
            + rb"(?:\s*(?:=|:|->|\bis\b|\bare\b)\s*|\s+)[\[(]?"
            + rb"(?P<s>"
            + _SEED_WORD
            + rb"(?:[\s,]{1,4}"
            + _SEED_WORD
            + rb"){11,23})"
        ),
        lambda value: len(names.PROSE & set(value.lower().split())) < 3,
    ),
    SecretPlace(
        "secret",
        (b"mnemonic",),
        pattern(
            rb"(?i)\bmnemonic"
            + _MAYBE
            + rb"\s*(?:=|:|\bis\b)\s*"
            + _MAYBE
            + rb"(?P<s>[a-z]+(?: [a-z]+){5,30})"
        ),
    ),
    SecretPlace(
        "secret",
        (b"pass", b"secret", b"tokens", b"key"),
        pattern(
            # From the begin of a name, and without a second try for a shorter list: both take long.
            rb"(?i)(?<![\w.-])(?P<name>[\w.-]{0,80}(?:passwords?|passwds?|secrets?|tokens|keys?))"
            + _MAYBE
            + rb"\s*[:=]\s*\[(?=(?P<s>\s{0,8}b?"
            + QUOTE
            + rb"[^\]\n]{6,500}))(?P=s)\]"
        ),
        _lists_secrets,
    ),
    # ---- files
    SecretPlace(
        "password", (b"login",), pattern(rb"\blogin\s+\S{1,200}\s+password\s+(?P<s>[^\s<]\S*)")
    ),
    SecretPlace(
        "password",
        (b"requirepass",),
        pattern(rb"\brequirepass\s+" + _MAYBE + rb"(?P<s>[^\s<\"']+)"),
    ),
    SecretPlace(
        "password", (b"masterauth",), pattern(rb"\bmasterauth\s+" + _MAYBE + rb"(?P<s>[^\s<\"']+)")
    ),
    SecretPlace(
        "password", (b"jdbc",), pattern(rb"\bjdbc:oracle:\w+:[^/\s]{1,200}/(?P<s>[^@\s]+)@")
    ),
    SecretPlace(
        "password",
        (b":",),
        pattern(
            rb"(?<=[\w.*\]-]):(?:\d{4,5}|\*):[\w.*-]{1,80}:[\w.*-]{1,80}:(?P<s>[^\s:\"'\\]{6,})"
        ),
        names.looks_chosen,
    ),
    SecretPlace(
        "password-hash",
        (b"$",),
        pattern(
            rb"\$(?:apr1|[156]|2[abxy]|y|gy|7|argon2\w{0,2}|scrypt|pbkdf2[\w-]{0,20})\$(?P<s>[\w./$=,+-]{16,})"
        ),
    ),
    SecretPlace(
        "key",
        (b"kty",),
        pattern(
            QUOTE + rb"(?:k|d|p|q|dp|dq|qi)" + QUOTE + rb"\s*:\s*" + QUOTE + rb"(?P<s>[\w-]{16,})"
        ),
    ),
    SecretPlace(
        "key",
        (b"username",),
        pattern(
            QUOTE
            + rb"username"
            + QUOTE
            + rb"\s*:\s*"
            + QUOTE
            + rb"[^\"'\\]{0,200}"
            + QUOTE
            + rb"\s*,\s*"
            + QUOTE
            + rb"key"
            + QUOTE
            + rb"\s*:\s*"
            + QUOTE
            + rb"(?P<s>[^\"'\\]{8,})"
        ),
    ),
    SecretPlace(
        "password",
        (b"</",),
        pattern(rb"(?i)<[\w:.-]*(?:password|passwd|secret|token|apikey)>(?P<s>[^<\s][^<]*)</"),
    ),
    SecretPlace(
        "password",
        (b"</name>",),
        pattern(rb"(?i)<name>\s*(?P<name>[^<\s]{1,200})\s*</name>\s*<value>(?P<s>[^<]+)</value>"),
    ),
    SecretPlace(
        "aws-secret",
        (b"akia", b"asia"),
        pattern(
            rb"(?:AKIA|ASIA)[A-Z2-7]{16}[\"'\s,:/]{1,4}(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
        ),
    ),
)

_OPTION = pattern(rb"-(?<![\w-]-)[pw]")
"""An option that begins with `p` or `w`, in lower case: `-p`, and not `--port`."""
_OF_COMMANDS = frozenset(
    (
        b"-p",
        b"-w",
        b"-pw",
        b"--auth",
        b"%",
        b"curl",
        b"redis",
        b"htpasswd",
        b"sshpass",
        b"et ",
        b" -a ",
        b" -u ",
    )
)
COMMANDS = tuple(place for place in PLACES if place.words[0] in _OF_COMMANDS)
"""The places of command lines."""
_GATES = (b"-", b"auth", b":", b"login", b"pass", b"<")


def _gated(places: tuple[SecretPlace, ...]) -> tuple[tuple[bytes, tuple[bytes, ...]], ...]:
    """The words of places by a text that they share: most lines are searched for few of them."""
    gates: dict[bytes, dict[bytes, None]] = {}
    for word in dict.fromkeys(word for place in places for word in place.words):
        gate = next((gate for gate in _GATES if gate in word), word)
        gates.setdefault(gate, {})[word] = None
    return tuple((gate, tuple(words)) for gate, words in gates.items())


_WORDS, _WORDS_OF_COMMANDS = _gated(PLACES), _gated(COMMANDS)


def _words_in(
    lower: bytes, gated: tuple[tuple[bytes, tuple[bytes, ...]], ...]
) -> tuple[bytes, ...]:
    return tuple(
        [word for gate, words in gated if gate in lower for word in words if word in lower]
    )


def spans(line: bytes) -> Iterator[Span]:
    """Values in a secret's place."""
    lower = line.lower()
    yield from _spans(line, lower, _words_in(lower, _WORDS), False)
    yield from sentences.spans(line, lower)


def command_spans(line: bytes) -> Iterator[Span]:
    """Values in a secret's place on a command line."""
    lower = line.lower()
    yield from _spans(line, lower, _words_in(lower, _WORDS_OF_COMMANDS), True)


@lru_cache(maxsize=1024)
def _possible(
    words: tuple[bytes, ...], is_command: bool, has_option: bool
) -> tuple[SecretPlace, ...]:
    """The places that a line with these words can have."""
    here = {word for word in words if has_option or word not in (b"-p", b"-w")}
    places = COMMANDS if is_command else PLACES
    return tuple(place for place in places if not here.isdisjoint(place.words))


def _spans(line: bytes, lower: bytes, words: tuple[bytes, ...], is_command: bool) -> Iterator[Span]:
    """Values in a secret's place. `words`: the words of the places that the line contains."""
    has_option = bool(words) and bool(_OPTION.search(lower))
    for place in _possible(words, is_command, has_option):
        for match in place.shape.finditer(line):
            value, kind = match["s"], place.kind
            if "name" in place.shape.groupindex:
                kind, certain = names.kind_of(match["name"].decode("ascii", "replace"))
                if not kind or not (certain or names.looks_secret(value)):
                    continue
            if b"<secret:" not in value and place.judge(value):
                yield Span(match.start("s"), _end(value, match.start("s")), kind)


def _end(value: bytes, start: int) -> int:
    """The end of a value without a sentence's punctuation and a call's closing brackets."""
    kept = value.rstrip(b".,;")
    if kept.endswith((b")", b"]", b"}")) and not any(c in kept for c in b"([{"):
        kept = kept.rstrip(b")]}")
    return start + len(kept)


# ---------------------------------------------------------------- URLs

_URL = pattern(
    rb"[A-Za-z][A-Za-z0-9+.-]{0,40}:(?:\\{0,7}/){2}(?P<user>[^\s/:@\"'<>?#\\]{0,500})"
    rb"(?::(?P<password>(?!\d{1,5}(?:[/?#,]|$))(?:(?!://)[^\s\"'<>]){0,300}))?@(?=[\w\[.$%-])"
)
_TOKEN = pattern(rb"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=.~%-]{12,}")


def url_spans(line: bytes) -> Iterator[Span]:
    """Passwords of URLs (everything up to the last `@`), and users that are tokens."""
    for match in _URL.finditer(line):
        user, password = match["user"], match["password"]
        if password and not names.is_plain(password, "password"):
            yield Span(*match.span("password"), "url-password")
        if len(user) >= 16 and _TOKEN.fullmatch(user):
            yield Span(*match.span("user"), "url-token")
