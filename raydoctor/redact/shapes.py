"""Secrets recognized by their shape: tokens with an issuer's prefix, and private keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from raydoctor.model.patterns import pattern
from raydoctor.redact.span import PLACEHOLDER, Span

SHAPES: Mapping[str, str] = {
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
    "discord_webhook": r"(?<=/webhooks/)\d{16,20}/[\w-]{40,}",
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
"""Kind (`_` for `-`) -> pattern of an issuer's tokens, which matches none of Ray's strings."""

_NOT_INSIDE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x00)|(?<=\\u0000))"
"""At the beginning of a word; a preceding escape is not part of the word."""


@cache
def _shapes() -> re.Pattern[bytes]:
    named = "|".join(f"(?P<{kind}>{shape})" for kind, shape in SHAPES.items())
    return re.compile(f"{_NOT_INSIDE}(?:{named})".encode())


@cache
def any_shape() -> re.Pattern[bytes]:
    """A cheaper pattern that accepts every shape, without named groups and the check of what precedes."""
    quick = {
        **SHAPES,
        "jwt": r"eyJ[\w-]{8}",
    }  # the complete pattern is slow because it may begin at every third character
    return re.compile("|".join(quick.values()).encode())


def spans(line: bytes) -> Iterator[Span]:
    """Texts with the shape of a secret."""
    if not any_shape().search(line):
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
