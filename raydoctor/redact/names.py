"""Recognises names of secrets, and values that are secrets: the words before and after `=`."""

from __future__ import annotations

import re
from functools import lru_cache

from raydoctor.model.patterns import pattern
from raydoctor.redact.span import PLACEHOLDER

_KEYS_OF = frozenset((
    "api", "access", "secret", "private", "encryption", "signing", "account", "auth", "license",
    "integration", "storage", "ssh", "master", "sharedaccess", "shared", "consumer", "deploy",
    "application", "app", "subscription", "service", "ingestion", "client", "sas", "fernet", "write",
    "instrumentation", "preshared", "pagerdutyrouting", "aes", "rsa", "hmac", "jwt", "cookie", "cipher",
    "decryption", "wrapping", "unseal", "webhook", "totp",
))  # fmt: skip
_CERTAIN = (
    (
        "password",
        (
            *("password", "passwords", "passwd", "passphrase", "pwd", "passcode", "passkey"),
            *("storepass", "passwort", "motdepasse"),
        ),
    ),
    (
        "credential",
        ("credential", "credentials", "connectionstring", "connstring", "connstr"),
    ),
    ("secret", ("secret", "secrets", "secretid", "clientsecret", "jwt", "secretstr", "mnemonic")),
    ("token", ("token", "authorization", "bearer", "samlresponse", "samlrequest", "codeverifier")),
    ("cookie", ("cookie", "cookies")),
    (
        "key",
        tuple(
            f"{of}key{ending}"
            for of in _KEYS_OF
            for ending in ("", "s", "id", "base", "base64", "data")
        ),
    ),
)
"""Endings of names (lower case, no punctuation) whose value is a secret of any shape."""
_WORDS = {"pw": "password", "psk": "password", "keypass": "password", "passw": "password", "salt": "secret",
          "otp": "token", "creds": "credential"}  # fmt: skip
"""Last words of such names."""
_LIKELY = pattern(
    r"(?:^|[_.\-])(?:pass|pat|sig|auth|key|apikeys?|dsn|sas)$|signature$|sess(?:ion)?id$|connect\.sid$|tokens$",
    re.IGNORECASE,
)
"""Names that may also have other values, so that the value must look like a secret."""
_LIKELY_CASED = pattern(r"[a-z](?:Key|Auth|Pass|Sig)$")
_LOUD_KEY = pattern(r"[A-Z][A-Z0-9_]*_(?:KEY|KEYS|PASS|AUTH|PAT)$|^-.*-(?:key|pass|auth)$")
"""Forms of names of secrets in environments and options."""
_NOT_SECRET = pattern(
    # Tokens of models and parsers, and tokens for paging.
    r"(?:pad|eos|bos|unk|cls|sep|mask|image|video|audio|num|max|min|next|continuation|page|start|end|stop|"
    r"special|per|cancellation|cluster|prompt|first|last|output|input|draft|new|generated|this|each|"
    r"resume|sync|fencing|startup|public|host)(?:token|key|keyid)$"
    r"|^(?:unexpected|invalid|missing|expired|unknown|bad|wrong|nosuch|no|public|foreign|primary|partition|sort)"
    r"|(?:bypass|compass)$|^imagepullsecrets?$"
)
_KEYS_OF_DATA = frozenset((
    "agg", "attr", "batch", "bucket", "cache", "column", "config", "data", "dedup", "dict", "event",
    "feature", "field", "foreign", "func", "function", "gather", "group", "hash", "hot", "idempotency",
    "index", "item", "job", "join", "json", "kv", "label", "lock", "lookup", "map", "memcache",
    "message", "meta", "metric", "msg", "node", "object", "order", "param", "partition", "placement",
    "primary", "prop", "query", "range", "record", "reduce", "registry", "routing", "row", "s3",
    "scheduling", "search", "section", "session", "setting", "shard", "short", "sort", "state", "tag",
    "task", "translation", "tree", "trace", "unique", "user", "env", "var", "yaml",
))  # fmt: skip
"""Words before `key` in names without a secret: `cache_key`, `routing_key`."""
_WORD = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


_LONGEST = 200
"""Characters at the end of a name that decide."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> tuple[str, bool]:
    """The kind of secret that a name holds (empty: none), and whether that is certain without the value."""
    name = name[-_LONGEST:]
    words = [word.lower() for word in _WORD.findall(name)]
    if words and words[-1] in _WORDS:
        return _WORDS[words[-1]], True
    bare = "".join(words) if name.isascii() else re.sub(r"[^a-z0-9]", "", name.lower())
    if len(name) < 3 or not bare or _NOT_SECRET.search(bare):
        return "", False
    certain = next((kind for kind, endings in _CERTAIN if bare.endswith(endings)), "")
    if certain:
        return certain, True
    if words[-1:] in (["key"], ["keys"]) and words[-2:-1] and words[-2] in _KEYS_OF_DATA:
        return "", False
    # `fs.azure.account.key.NAME.dfs.core.windows.net` is also a key.
    if _LOUD_KEY.search(name) or ".account.key." in name:
        return "key", True
    return ("key", False) if _LIKELY.search(name) or _LIKELY_CASED.search(name) else ("", False)


# ---------------------------------------------------------------- values

_PLAIN = pattern(
    rb"(?i:none|null|nil|nan|true|false|yes|no|on|off|undefined|str|string|bytes|int|bool|unset|empty|required|"
    rb"enabled|disabled|missing|incorrect|invalid|token|hidden|masked|x+|\*+|\.+|-+|optional\[.*|"
    # What is said of a secret: no one chooses these.
    rb"mounted|valid|expired|revoked|rotated|refreshed|renewed|rejected|accepted|verified|found|present|absent|"
    rb"provided|configured|loaded|generated|created|updated|deleted|changed|"
    rb"\[?\W?(?:redacted|filtered|removed)\W?\]?)"
    rb"|\$(?:[A-Z_][A-Z0-9_]*|[{(].*)|%\(\w+\)s|%s|\{\w*\}?|<[^<>]*>|\d{1,6}|[|>][+-]?\d?"
)
_CODE = pattern(rb"(?:self|os|cls|args|config|settings|kwargs)\.[a-z_.]+.*|[a-z_][a-z_.]*\(.*")
_PATH = pattern(
    rb"(?:~|\.{1,2})?/(?:tmp|home|root|etc|var|opt|usr|mnt|run|secrets?|data|dev|Users)(?:/.*)?"
    rb"|(?:~|\.{1,2})?(?:/?[\w.-]+/)*[\w-]+\.(?:pem|json|key|crt|cer|ya?ml|txt|toml|ini|cfg|py)(?::\d+)?|~/.*"
)
_RANDOM = pattern(rb"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=.~%-]{12,}")
_CHUNK = pattern(rb"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{8,}|[A-Za-z0-9+=~]{16,}")
_ORDINARY = pattern(
    rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:[0-9a-f]{4})+|session_[\d_-]+|[\w.-]*:\d+|[\d.:TZ+-]+"
    rb"|/.*|[a-z_.]+\d{0,4}|[\w./-]+\.[a-z][a-z0-9]{1,9}|[\w-]+(?:\.[a-z]\w*){2,}"
)
PROSE = frozenset(
    b"a an and as at be by can cannot could does for from has have if in into is it must not of on or please "
    b"should that the this to use used value was were when which will with you your".split()
)
_MIXED = pattern(rb"[a-z][A-Z]|[A-Z]{2}[a-z]|[A-Z][a-z]+[A-Z]")
_SPECIAL = pattern(rb"[!#$%^&*+=~?@]")


def looks_secret(value: bytes) -> bool:
    """Whether a possible secret looks like one and unlike Ray's ids."""
    return (
        bool(_RANDOM.match(value)) and bool(_CHUNK.search(value)) and not _ORDINARY.fullmatch(value)
    )


def looks_chosen(value: bytes) -> bool:
    """Whether a value looks like a chosen password, not like a plain word, number, port or path."""
    if len(value) < 6 or is_plain(value, "password") or b"/" in value[:1] or b"://" in value:
        return False
    if (
        b"<secret:" in value
        or value.endswith((b"...", b"()"))
        or value.startswith((b"-", b"<", b"${", b"$("))
    ):
        return False
    has_letter = bool(_LETTER.search(value))
    if has_letter and _DIGIT.search(value):
        is_mixed = value.isalnum() and len(value) >= 10 and bool(_MIXED.search(value[1:]))
        return is_mixed or not _VERSIONED.fullmatch(value)
    return has_letter and bool(_SPECIAL.search(value) or _MIXED.search(value[1:]))


_SCRAMBLED = pattern(
    # One run of letters in both cases and digits, or alternating letters and digits; or letters with
    # characters that do not occur in names.
    rb"(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}|(?:[a-z]{1,5}\d{1,4}){3,}[a-z]*"
    rb"|(?:[A-Z]{1,5}\d{1,4}){3,}[A-Z]*|[A-Za-z0-9][\w.-]*[!#$%^&*+?@][\w!@#$%^&*+?.-]*[\w!]"
)


_JUDGED = 128
"""Characters of a word that decide: the search takes time that grows with their square."""


def looks_random(value: bytes) -> bool:
    """Whether a word without context looks generated; stricter than `looks_chosen`."""
    return len(value) >= 8 and looks_chosen(value) and bool(_SCRAMBLED.search(value[:_JUDGED]))


_VERSIONED = pattern(
    rb"(?i)v?\d+(?:[.:-]\w+)*|[\w.-]+:\d+(?::\d+)?|[a-z]+[_-]?\d{1,3}"
    rb"|\d+(?:st|nd|rd|th|s|ms|m|h|d|k|kb|mb|gb|[kmgt]ib|x|%)"
    rb"|\d+[xX]\d+|[\w-]+(?:[./][\w-]+)+|0x[0-9a-f]+"
)
_LETTER, _DIGIT = pattern(rb"[A-Za-z]"), pattern(rb"\d")


def holds(value: bytes, certain: bool) -> bool:
    """Whether the value of a name on another line is a secret; placeholders were judged before."""
    if b"<secret:" in value:
        return False
    return not is_plain(value, "value") and (certain or looks_secret(value))


def is_plain(value: bytes, name: str, bare: bool = False) -> bool:
    """Whether a value is a word for "none", or only a reference (a path, a variable, bare code)."""
    if (
        not value
        or PLACEHOLDER.fullmatch(value)
        or _PLAIN.fullmatch(value)
        or _PATH.fullmatch(value)
    ):
        return True
    if not bare:
        return False
    own = name.lower().strip("-_").replace("-", "_")
    word = value.decode("ascii", "replace").lower().replace(".", "_")
    return bool(_CODE.fullmatch(value)) or (word.endswith(own) and word.isidentifier())
