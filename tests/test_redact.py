"""No secret of a seeded corpus gets through, and nothing that a diagnosis needs is lost.

The corpus is made at run time (`kind`, `surrounding`, `seed`): no secret, and nothing that a scanner takes for
one, is in the repository. Each secret has a random part that begins with FAKE; a leak is any eight characters of
that part in the output.
"""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import string
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from captures import all_captures, capture_of, report_of

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Report
from raydoctor.observe.processes.redact import Redactor
from raydoctor.redact import redactor as redactor_module
from raydoctor.redact import shapes

FIXTURES = Path(__file__).parent.parent / "fixtures"
SEEDS = range(4)

ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase
BASE32 = UPPER + "234567"
URLSAFE = ALNUM + "-_"
BASE64 = ALNUM + "+/"
PASSWORD = ALNUM + "!#%+~.-_^*"
UUID = "uuid"


class Kind(NamedTuple):
    """How a secret is made, and the name that it goes by."""

    before: str
    alphabet: str
    length: int
    name: str
    after: str = ""
    shaped: bool = True
    """Whether it is known without its name."""


def named(name: str, alphabet: str = ALNUM, length: int = 32) -> Kind:
    return Kind("", alphabet, length, name, shaped=False)


KINDS = {
    "ray token": named("RAY_AUTH_TOKEN", HEX, 64),
    "aws access key": Kind("AK" + "IA", BASE32, 16, "AWS_ACCESS_KEY_ID"),
    "aws temporary key": Kind("AS" + "IA", BASE32, 16, "aws_access_key_id"),
    "aws secret": named("AWS_SECRET_ACCESS_KEY", BASE64, 40),
    "aws session token": named("AWS_SESSION_TOKEN", BASE64, 300),
    "gcp api key": Kind("AI" + "za", URLSAFE, 35, "GOOGLE_API_KEY"),
    "gcp oauth": Kind("ya2" + "9.", URLSAFE, 80, "access_token"),
    "gcp client secret": Kind("GOC" + "SPX-", URLSAFE, 28, "client_secret"),
    "azure storage key": Kind("", BASE64, 86, "AccountKey", "=="),
    "azure client secret": named("AZURE_CLIENT_SECRET", ALNUM + "~._-", 40),
    "github": Kind("gh" + "p_", ALNUM, 36, "GITHUB_TOKEN"),
    "github oauth": Kind("gh" + "o_", ALNUM, 36, "oauth_token"),
    "github app": Kind("gh" + "s_", ALNUM, 36, "GH_TOKEN"),
    "github fine-grained": Kind("github" + "_pat_", ALNUM + "_", 82, "GH_PAT"),
    "gitlab": Kind("glp" + "at-", URLSAFE, 20, "GITLAB_TOKEN"),
    "hugging face": Kind("h" + "f_", ALNUM, 34, "HF_TOKEN"),
    "openai": Kind("s" + "k-", ALNUM, 48, "OPENAI_API_KEY"),
    "openai project": Kind("s" + "k-proj-", URLSAFE, 120, "openai_api_key"),
    "anthropic": Kind("s" + "k-ant-api03-", URLSAFE, 93, "ANTHROPIC_API_KEY"),
    "cohere": named("COHERE_API_KEY", ALNUM, 40),
    "mistral": named("MISTRAL_API_KEY", ALNUM, 32),
    "slack bot": Kind("xo" + "xb-", string.digits + ALNUM, 50, "SLACK_BOT_TOKEN"),
    "slack app": Kind("xa" + "pp-1-", string.digits + UPPER, 60, "SLACK_APP_TOKEN"),
    "stripe": Kind("sk_" + "live_", ALNUM, 24, "STRIPE_SECRET_KEY"),
    "stripe restricted": Kind("rk_" + "live_", ALNUM, 24, "stripe_key"),
    "twilio": Kind("S" + "K", HEX, 32, "TWILIO_API_KEY"),
    "sendgrid": Kind("S" + "G.", URLSAFE, 22, "SENDGRID_API_KEY", "." + "FAKE" * 11),
    "npm": Kind("np" + "m_", ALNUM, 36, "NPM_TOKEN"),
    "pypi": Kind("pyp" + "i-AgEI", URLSAFE, 150, "TWINE_PASSWORD"),
    "docker hub": Kind("dck" + "r_pat_", URLSAFE, 27, "DOCKER_PASSWORD"),
    "docker auth": named("_auth", BASE64, 60),
    "wandb": named("WANDB_API_KEY", HEX, 40),
    "comet": named("COMET_API_KEY", ALNUM, 25),
    "mlflow": named("MLFLOW_TRACKING_PASSWORD", PASSWORD, 16),
    "neptune": named("NEPTUNE_API_TOKEN", BASE64, 120),
    "databricks": Kind("da" + "pi", HEX, 32, "DATABRICKS_TOKEN"),
    "snowflake": named("SNOWFLAKE_PASSWORD", PASSWORD, 18),
    "jwt": Kind("ey" + "JhbGciOiJSUzI1NiJ9.ey" + "J", URLSAFE, 90, "id_token", "." + "c2ln" * 10),
    "redis password": named("REDIS_PASSWORD", PASSWORD, 20),
    "redis default": named("RAY_REDIS_PASSWORD", HEX, 32),
    "generic password": named("password", PASSWORD, 14),
    "generic passwd": named("db_passwd", PASSWORD, 14),
    "generic pwd": named("FTP_PWD", ALNUM, 12),
    "generic credential": named("service_credential", ALNUM, 24),
    "generic api key": named("apiKey", ALNUM, 24),
    "header api key": named("X-Api-Key", ALNUM, 32),
    "signing key": named("SIGNING_KEY", ALNUM, 32),
    "kaggle": named("KAGGLE_KEY", HEX, 32),
    "heroku": named("HEROKU_API_KEY", UUID, 36),
    "vault": Kind("hv" + "s.", URLSAFE, 90, "VAULT_TOKEN"),
    "vault approle": named("secret_id", UUID, 36),
    "doppler": Kind("dp." + "st.", ALNUM, 43, "DOPPLER_TOKEN"),
    "age": Kind("AGE-SEC" + "RET-KEY-1", "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58, "SOPS_AGE_KEY"),
    "terraform": Kind("FAKEfake123456.atlas" + "v1.", ALNUM, 60, "TF_TOKEN_app_terraform_io_TOKEN"),
    "new relic": Kind("NR" + "AK-", UPPER + string.digits, 27, "NEW_RELIC_API_KEY"),
    "datadog": named("DD_API_KEY", HEX, 32),
    "datadog app": named("DD_APP_KEY", HEX, 40),
    "pagerduty": named("PAGERDUTY_ROUTING_KEY", ALNUM, 32),
    "nvidia": Kind("nva" + "pi-", URLSAFE, 64, "NGC_API_KEY"),
    "groq": Kind("gs" + "k_", ALNUM, 52, "GROQ_API_KEY"),
    "replicate": Kind("r" + "8_", ALNUM, 37, "REPLICATE_API_TOKEN"),
    "langsmith": Kind("ls" + "v2_pt_", HEX, 32, "LANGSMITH_API_KEY", "_" + "fade" * 3),
    "pinecone": Kind("pc" + "sk_", ALNUM, 60, "PINECONE_API_KEY"),
    "grafana": Kind("gl" + "sa_", ALNUM, 32, "GRAFANA_TOKEN", "_fade1234"),
    "digitalocean": Kind("do" + "p_v1_", HEX, 64, "DIGITALOCEAN_TOKEN"),
    "tailscale": Kind("tsk" + "ey-auth-", ALNUM, 30, "TS_AUTHKEY"),
    "postman": Kind("PM" + "AK-", HEX, 24, "POSTMAN_API_KEY", "-" + "fade" * 9),
    "shopify": Kind("shp" + "at_", HEX, 32, "SHOPIFY_ACCESS_TOKEN"),
    "atlassian": Kind("AT" + "ATT3", URLSAFE, 180, "JIRA_API_TOKEN"),
    "notion": Kind("nt" + "n_", ALNUM, 46, "NOTION_API_KEY"),
    "telegram": Kind("123456789:" + "AA", URLSAFE, 33, "TELEGRAM_BOT_TOKEN"),
    "pulumi": Kind("pu" + "l-", HEX, 40, "PULUMI_ACCESS_TOKEN"),
    "anyscale": Kind("ash" + "0_", ALNUM, 40, "ANYSCALE_CLI_TOKEN"),
    "sentry token": Kind("snt" + "rys_", BASE64, 120, "SENTRY_AUTH_TOKEN"),
}
"""Kinds that are one word, in every surrounding that suits them."""


def random_part(alphabet: str, length: int, rng: random.Random) -> str:
    if alphabet == UUID:
        return "-".join(random_part(HEX, n, rng) for n in (8, 4, 4, 4, 12))
    mark = "FAKE" if "E" in alphabet and "K" in alphabet else "fade" if "f" in alphabet else ""
    # A digit at the end: shapes of 20 characters without any are names.
    return mark + "".join(rng.choices(alphabet, k=length - len(mark)))


def make(kind: Kind, rng: random.Random) -> tuple[str, str]:
    """A secret and its random part."""
    part = random_part(kind.alphabet, kind.length, rng)
    return f"{kind.before}{part}{kind.after}", part


def pieces(part: str) -> Iterator[str]:
    return (part[at : at + 8] for at in range(len(part) - 7))


HEADER = "[2026-11-21 07:34:50,739 I 283 293] (raylet) agent_manager.cc:80: "


def option(name: str) -> str:
    return "--" + name.lower().strip("_").replace("_", "-")


NAMED: dict[str, Callable[[str, str], str]] = {
    "log line": lambda n, s: f"Connecting with {n}={s} to the service\n",
    "log line, colon": lambda n, s: f"2026-11-21 07:35:03,092\tINFO worker.py:26 -- {n}: {s}\n",
    "ray log line": lambda n, s: f"{HEADER}Started with {n}={s}, node_id={'ab' * 28}\n",
    "driver prefix": lambda n, s: f"\x1b[36m(f pid=6944, ip=10.0.0.7)\x1b[0m {n} = '{s}'\n",
    "json": lambda n, s: json.dumps({"a": 1, n: s, "b": [2]}),
    "json, indented": lambda n, s: json.dumps({"a": {n: s, "b": 1}}, indent=2),
    "json in json": lambda n, s: json.dumps({"info": json.dumps({"x": 1, n: s, "y": 2})}),
    "json log": lambda n, s: json.dumps({"levelname": "I", "message": f"got {n}={s}\nnext", "pid": 1}),
    "repr": lambda n, s: f"config: {({'x': 1, n: s, 'y': 'z'})!r}\n",
    "repr of bytes": lambda n, s: f"{({n.encode(): s.encode()})!r}\n",
    "repr in json": lambda n, s: json.dumps({"message": f"{({n: s, 'y': 2})!r} failed"}),
    "option": lambda n, s: f"Running: train.py {option(n)} {s} --epochs 3\n",
    "option=": lambda n, s: f"python train.py {option(n)}={s} --epochs 3\n",
    "option, quoted": lambda n, s: f"python train.py {option(n)} '{s}' --epochs 3\n",
    "argv": lambda n, s: f"args {['python', option(n), s, '--epochs', '3']!r}\n",
    "argv=": lambda n, s: json.dumps(["python", f"{option(n)}={s}", "--epochs"]),
    "cmdline": lambda n, s: f"python\0train.py\0{option(n)}\0{s}\0--epochs\0003\0",
    "export": lambda n, s: f"export {n}={s}\n",
    "export, quoted": lambda n, s: f'+ export {n}="{s}" && python train.py\n',
    "prefix": lambda n, s: f"{n}={s} python train.py --epochs 3\n",
    "docker": lambda n, s: f"docker run -e {n}={s} -v /data:/data image:1.2\n",
    "environ": lambda n, s: f"PATH=/bin\0{n}={s}\0HOME=/home/user\0",
    "environ, first": lambda n, s: f"{n}={s}\0PATH=/bin\0",
    "printenv": lambda n, s: f"HOME=/home/user\n{n}={s}\nPWD=/home/user\n",
    "query": lambda n, s: f"GET https://api.example/v1/x?{n}={quote(s, safe='')}&page=2 -> 401\n",
    "encoded query": lambda n, s: f"redirect=https%3A%2F%2Fx%3Fa%3D1%26{n}%3D{quote(s, safe='')}\n",
    "traceback": lambda n, s: (
        "Traceback (most recent call last):\n"
        f'  File "/home/user/train.py", line 7, in main\n    client = Client({n.replace("-", "_")}="{s}", x=1)\n'
        f"ValueError: bad argument {n}='{s}'\n"
    ),
    "call": lambda n, s: f"connect(host='h', {n.replace('-', '_')}='{s}', port=1) failed\n",
    "os.environ": lambda n, s: f'os.environ["{n}"] = "{s}"\n',
    "setdefault": lambda n, s: f"os.environ.setdefault('{n}', '{s}')\n",
    "yaml": lambda n, s: f"env:\n  {n}: {s}\n  other: 1\n",
    "yaml, quoted": lambda n, s: f'- {n}: "{s}"  # a comment\n',
    "yaml, block": lambda n, s: f"{n}: |\n  {s}\nother: 1\n",
    "kubernetes": lambda n, s: f"- name: {n}\n  value: {s}\n- name: OTHER\n  value: x\n",
    "kubernetes, json": lambda n, s: json.dumps([{"name": n, "value": s}, {"name": "A", "value": "b"}]),
    "kubernetes, indented": lambda n, s: json.dumps([{"name": n, "value": s}], indent=1),
    "header": lambda n, s: f"> {n}: {s}\r\n> Accept: */*\r\n",
    "header pairs": lambda n, s: f"headers={[('Accept', '*/*'), (n, s)]!r}\n",
    "curl": lambda n, s: f"curl -H '{n}: {s}' https://api.example/v1\n",
    "entrypoint": lambda n, s: json.dumps({"entrypoint": f"python t.py {option(n)} {s} --n 3", "status": "FAILED"}),
    "entrypoint, export": lambda n, s: json.dumps({"entrypoint": f'export {n}="{s}"; python t.py', "id": 1}),
    "runtime_env": lambda n, s: json.dumps({"pip": ["a==1"], "env_vars": {n: s, "B": "1"}}),
    "runtime_env in json": lambda n, s: json.dumps({"serialized_runtime_env": json.dumps({"env_vars": {n: s}})}),
    "connection string": lambda n, s: f"Endpoint=sb://h.example/;Name=root;{n}={s};Timeout=3\n",
    "toml": lambda n, s: f'{n} = "{s}"\n',
    "xml": lambda n, s: f"<property><{n}_token>{s}</{n}_token></property>\n",
    "annotated": lambda n, s: f'    {n.replace("-", "_")}: str = "{s}"\n',
}  # fmt: skip
"""Surroundings that name what they hold."""

HIDDEN: dict[str, Callable[[str], str]] = {
    "runtime_env": lambda s: json.dumps({"env_vars": {"PLAIN": s, "B": "x"}, "pip": ["torch"]}),
    "runtime_env, repr": lambda s: f"{ ({'env_vars': {'PLAIN': s}, 'pip': []})!r}\n",
    "runtime_env in json": lambda s: json.dumps(
        {"runtime_env": json.dumps({"env_vars": {"A": s}})}
    ),
    "bearer": lambda s: f"-> Authorization: Bearer {s}\n",
    "bearer, json": lambda s: json.dumps({"headers": {"Authorization": f"Bearer {s}"}}),
    "bearer, pair": lambda s: f"metadata={[('authorization', f'Bearer {s}')]!r}\n",
    "x-ray": lambda s: f"{ ({'X-Ray-Authorization': f'Bearer {s}'})!r}\n",
    "cookie": lambda s: f"Cookie: theme=dark; ray-authentication-token={s}; lang=en\n",
    "cookie, json": lambda s: json.dumps({"Cookie": f"ray-authentication-token={s}"}),
    "redis option": lambda s: f"ray start --address=h:6379 --redis-password={s} --block\n",
    "redis init": lambda s: f"ray.init(address='auto', _redis_password='{s}')\n",
}
"""Surroundings where anything is a secret."""

BARE: dict[str, Callable[[str], str]] = {
    "word": lambda s: f"Logging in with {s} now\n",
    "ray log line": lambda s: f"{HEADER}Cannot use {s}: code 403\n",
    "key error": lambda s: f"KeyError: '{s}'\n",
    "json list": lambda s: json.dumps(["a", s, "b"]),
    "escaped newline": lambda s: json.dumps({"message": f"one\n{s}\ntwo"}),
    "path": lambda s: f"POST https://api.example/{s}/send HTTP/1.1\n",
    "url user": lambda s: f"git clone https://{s}@git.example/a/b.git\n",
    "url password": lambda s: f"git clone https://oauth2:{quote(s, safe='')}@git.example/a/b.git\n",
    "colours": lambda s: f"\x1b[31m{s}\x1b[0m is refused\n",
    "environ": lambda s: f"A=1\0X={s}\0B=2\0",
}
"""Surroundings that say nothing."""


def lines_with(kind: Kind, secret: str) -> Iterator[tuple[str, str]]:
    for label, build in NAMED.items():
        if not (
            kind.name in ("_auth", "secret_id")
            and label.startswith(("option", "argv", "cmdline", "entrypoint"))
        ):
            yield label, build(kind.name, secret)
    for label, hide in HIDDEN.items():
        yield label, hide(secret)
    for label, show in BARE.items() if kind.shaped else ():
        yield label, show(secret)


def leaks(part: str, output: str) -> list[str]:
    return [piece for piece in pieces(part) if piece in output]


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.mark.parametrize("name", KINDS)
def test_no_secret_gets_through(name: str) -> None:
    kind, leaked, unstable = KINDS[name], [], []
    for seed in SEEDS:
        secret, part = make(kind, random.Random(f"{name} {seed}"))
        for label, text in lines_with(kind, secret):
            redactor = Redactor()
            output = redactor.redact(text)
            if leaks(part, output):
                leaked.append((label, text, output))
            if redactor.redact(output) != output or Redactor().redact(output) != output:
                unstable.append((label, output))
            assert output.count("\n") == text.count("\n")
            assert "<secret:" in output
            if text[0] in "{[" and (row := parsed(text)) is not None:
                clean = json.dumps(Redactor().redact_json(row))
                leaked += [(label, text, clean)] if leaks(part, clean) else []
    assert leaked == []
    assert unstable == []


# ---------------------------------------------------------------- secrets of several parts


def pem(label: str, rng: random.Random) -> tuple[list[str], str]:
    """The lines of a private key, and its body."""
    body = random_part(BASE64, 64 * 5 + 22, rng)
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    lines[-1] += "=="
    return [f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"], body


PEM_LABELS = [
    f"{of}PRIVATE K" + "EY" for of in ("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "DSA ")
]
PEM_SURROUNDINGS: dict[str, Callable[[list[str]], str]] = {
    "file": lambda ls: "\n".join(ls) + "\nafter it\n",
    "crlf": lambda ls: "\r\n".join(ls) + "\r\nafter it\r\n",
    "yaml": lambda ls: "key: |\n" + "".join(f"  {line}\n" for line in ls) + "after: it\n",
    "driver": lambda ls: "".join(f"\x1b[36m(f pid=6944)\x1b[0m {line}\n" for line in ls) + "after it\n",
    "ray log": lambda ls: "".join(f"{HEADER}{line}\n" for line in ls) + "after it\n",
    "interleaved": lambda ls: "".join(f"{line}\n{HEADER}Some other line\n" for line in ls),
    "json": lambda ls: json.dumps({"key": "\n".join(ls), "after": "it"}),
    "json in json": lambda ls: json.dumps({"x": json.dumps({"k": "\n".join(ls), "after": "it"})}),
    "repr": lambda ls: repr({"k": "\n".join(ls).encode(), "after": "it"}),
    "service account": lambda ls: json.dumps(
        {"type": "service_account", "private_key": "\n".join(ls) + "\n", "project_id": "after-it"}, indent=2
    ),
    "env": lambda ls: "TLS_KEY=" + "\n".join(ls) + "\0AFTER=it\0",
    "cut off": lambda ls: "\n".join(ls[:-1]) + "\n" + (HEADER + "after it\n") * 30,
    "cut off in json": lambda ls: json.dumps({"key": "\n".join(ls[:-1]), "z": "after it"}),
}  # fmt: skip


@pytest.mark.parametrize("surrounding", PEM_SURROUNDINGS)
@pytest.mark.parametrize("label", PEM_LABELS)
def test_no_private_key_gets_through(label: str, surrounding: str) -> None:
    lines, body = pem(label, random.Random(f"{label} {surrounding}"))
    text = PEM_SURROUNDINGS[surrounding](lines)
    output = Redactor().redact(text)
    assert leaks(body, output) == []
    assert body[-20:-2] not in output
    assert output.count("\n") == text.count("\n")
    assert re.search("(?i)after|other line", output)
    assert Redactor().redact(output) == output


def basic(secret: str) -> str:
    return base64.b64encode(f"user:{secret}".encode()).decode()


COMPOSITE: dict[str, tuple[str, int, Callable[[str], str]]] = {
    "redis url": (ALNUM, 16, lambda s: f"redis://:{s}@10.0.0.7:6379/0 failed\n"),
    "rediss url": (ALNUM, 16, lambda s: f"--address=rediss://default:{s}@h:6379\n"),
    "postgresql url": (PASSWORD, 16, lambda s: f"postgresql+psycopg2://root:{quote(s, safe='')}@db/x\n"),
    "postgresql in json": (ALNUM, 16, lambda s: json.dumps({"u": f"postgresql://u:{s}@db:5432/x"}, indent=0)),
    "escaped slashes": (ALNUM, 16, lambda s: f'{{"u":"postgresql:\\/\\/u:{s}@db:5432\\/x"}}'),
    "mysql url": (ALNUM, 16, lambda s: f"'mysql://root:{s}@h/db'\n"),
    "mongodb": (ALNUM, 16, lambda s: f"mongodb+srv://u:{s}@c0.example/?retryWrites=true\n"),
    "amqp": (ALNUM, 16, lambda s: f"amqps://guest:{s}@mq:5671/%2f\n"),
    "https user": (ALNUM, 16, lambda s: f"Looking in indexes: https://user:{s}@pypi.example/simple\n"),
    "https token": (ALNUM, 40, lambda s: f"https://{s}@git.example/a.git\n"),
    "https token, x-oauth": (ALNUM, 40, lambda s: f"https://{s}:x-oauth-basic@git.example/a.git\n"),
    "slash in password": (ALNUM, 16, lambda s: f"postgresql://u:{s[:8]}/{s[8:]}@db/x\n"),
    "at in password": (ALNUM, 16, lambda s: f"postgresql://u:{s[:8]}@{s[8:]}@db/x\n"),
    "sentry dsn": (HEX, 32, lambda s: f"dsn='https://{s}@o12.ingest.sentry.example/34'\n"),
    "s3 signature": (HEX, 64, lambda s: f"https://b.s3.example/k?X-Amz-Date=1&X-Amz-Signature={s}&x=1\n"),
    "s3 credential": (BASE32, 16, lambda s: f"?X-Amz-Credential=AK{'IA'}{s}%2F20261121%2Fus-east-1\n"),
    "s3 session": (ALNUM, 200, lambda s: f"?X-Amz-Security-Token={s}%2F&X-Amz-Expires=1\n"),
    "gcs signature": (HEX, 256, lambda s: f"https://b.example/o?X-Goog-Signature={s}\n"),
    "sas": (ALNUM, 40, lambda s: f"https://a.blob.example/c?sv=2024&sp=r&sig={s}%3D\n"),
    "azure string": (BASE64, 86, lambda s: f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={s}==;X=y\n"),
    "service bus": (BASE64, 43, lambda s: f"Endpoint=sb://h/;SharedAccessKeyName=r;SharedAccessKey={s}=\n"),
    "jdbc": (ALNUM, 16, lambda s: f"jdbc:postgresql://h/db?user=u&password={s}&ssl=true\n"),
    "jdbc sqlserver": (ALNUM, 16, lambda s: f"jdbc:sqlserver://h;user=u;password={s};encrypt=true\n"),
    "jdbc oracle": (ALNUM, 16, lambda s: f"jdbc:oracle:thin:scott/{s}@h:1521:x\n"),
    "odbc": (ALNUM, 16, lambda s: f"Driver={{X}};Server=h;Uid=u;Pwd={s};\n"),
    "libpq": (ALNUM, 16, lambda s: f"host=h user=u password={s} dbname=x\n"),
    "slack webhook": (ALNUM, 24, lambda s: f"https://hooks.slack.com/services/T0FAKE0/B0FAKE0/{s}\n"),
    "docker config": (BASE64, 40, lambda s: json.dumps({"auths": {"https://r.example": {"auth": s}}}, indent=1)),
    "npmrc": (ALNUM, 36, lambda s: f"//registry.example/:_authToken={s}\n"),
    "netrc": (PASSWORD, 16, lambda s: f"machine h login u password {s}\n"),
    "curl -u": (ALNUM, 16, lambda s: f"+ curl -sSf -u admin:{s} https://h/x\n"),
    "sshpass": (ALNUM, 16, lambda s: f"sshpass -p {s} ssh h\n"),
    "redis.conf": (ALNUM, 16, lambda s: f"requirepass {s}\n"),
    "gRPC metadata": (HEX, 64, lambda s: f"metadata=(('authorization', 'Bearer {s}'),)\n"),
    "bearer alone": (HEX, 64, lambda s: f"sending Bearer {s} to the GCS\n"),
    "set-cookie": (HEX, 64, lambda s: f"Set-Cookie: ray-authentication-token={s}; HttpOnly\n"),
    "sigv4": (HEX, 64, lambda s: f"Authorization: AWS4-HMAC-SHA256 Credential=x, SignedHeaders=h, Signature={s}\n"),
    "ssh key body": (BASE64, 200, lambda s: f"b3BlbnNzaC1r{'ZXktdjE'}AAAA{s}\n"),
    "aws pair": (ALNUM, 40, lambda s: f"credentials: AK{'IA'}FAKEFAKEFAKEFAKE:{s}\n"),
    "numeric password": (string.digits, 12, lambda s: json.dumps({"password": int("1" + s[1:])})),
    "terraform": (ALNUM, 60, lambda s: f"FAKEfake123456.atlas{'v1.'}{s}\n"),
    "spaces in environ": (ALNUM, 30, lambda s: f"A=1\0DB_PASSWORD={s[:9]} {s[9:18]} {s[18:]}\0B=2"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITE)
def test_no_secret_of_a_place_gets_through(name: str) -> None:
    alphabet, length, build = COMPOSITE[name]
    for seed in range(20):
        part = random_part(alphabet, length, random.Random(f"{name} {seed}"))
        text = build(part)
        output = Redactor().redact(text)
        coded = re.escape(quote(part, safe=""))[:8]
        assert leaks(part, output) == [], (text, output)
        assert not re.search(coded, output)
        assert Redactor().redact(output) == output, output


def test_basic_authentication_is_redacted() -> None:
    for seed in range(20):
        coded = basic(random_part(PASSWORD, 16, random.Random(seed)))
        for text in (
            f"Authorization: Basic {coded}\n",
            json.dumps({"authorization": f"Basic {coded}"}),
            f"curl -H 'Authorization: Basic {coded}' https://h\n",
        ):
            assert leaks(coded, Redactor().redact(text)) == []


def test_there_are_kinds_enough() -> None:
    assert len(KINDS) + len(COMPOSITE) + len(PEM_LABELS) >= 100
    assert len(shapes.SHAPES) >= 40


# ---------------------------------------------------------------- what the caller says


GIVEN = 'ab"c\\dé-0123456789-XYZ'


@pytest.mark.parametrize(
    "text",
    [
        f"x {GIVEN} y",
        json.dumps({"a": GIVEN}),
        json.dumps({"a": GIVEN}, ensure_ascii=False),
        repr({"a": GIVEN}),
        f"https://h/?q={quote(GIVEN, safe='')}",
        *(base64.b64encode(f"{'u' * n}:{GIVEN}:z".encode()).decode() for n in range(3)),
    ],
)
def test_a_given_secret_is_found_however_it_is_written(text: str) -> None:
    output = Redactor([GIVEN]).redact(text)
    assert "<secret:given-1>" in output
    assert "0123456789" not in output
    assert base64.b64encode(b"23456789-XYZ").decode()[2:12] not in output


def test_a_short_given_secret_counts_only_alone() -> None:
    assert (
        Redactor(["ray1"]).redact("ray1 xray12 (ray1)")
        == "<secret:given-1> xray12 (<secret:given-1>)"
    )
    assert Redactor(["ray"]).redact("ray is ray") == "ray is ray"


def test_a_given_secret_that_is_in_placeholders_leaves_them_whole() -> None:
    redactor = Redactor(["secret", "token-1"])
    once = redactor.redact("a secret: token=abcDEF123456 token-1\n")
    assert redactor.redact(once) == once


# ---------------------------------------------------------------- placeholders


def test_equal_secrets_have_equal_placeholders() -> None:
    redactor = Redactor()
    first = redactor.redact("HF_TOKEN=aaaa1111bbbb2222\nDB_PASSWORD=cccc3333dddd4444\n")
    second = redactor.redact('{"token": "aaaa1111bbbb2222", "token2_token": "eeee5555ffff6666"}')
    assert first == "HF_TOKEN=<secret:token-1>\nDB_PASSWORD=<secret:password-1>\n"
    assert second == '{"token": "<secret:token-1>", "token2_token": "<secret:token-2>"}'
    assert redactor.summary == {"password": 1, "token": 3}


def test_a_shape_names_the_kind() -> None:
    key = "AK" + "IA" + "FAKE" * 4
    assert Redactor().redact(f"AWS_ACCESS_KEY_ID={key}") == "AWS_ACCESS_KEY_ID=<secret:aws-key-1>"


# ---------------------------------------------------------------- state rows


def test_rows_lose_their_secrets_and_keep_their_keys() -> None:
    row: dict[str, Any] = {
        "task_id": "ab" * 24,
        "runtime_env_info": json.dumps(
            {
                "serialized_runtime_env": json.dumps(
                    {"env_vars": {"A": "b1", "HF_TOKEN": "xyz12345"}}
                )
            }
        ),
        "runtime_env": {"env_vars": {"MODE": "fast", "N": 3}, "pip": ["torch==2.0"]},
        "entrypoint": "python t.py --api-key s3cretvalue9 --n 3",
        "argv": ["python", "--token", "s3cretvalue9", "--n", "3"],
        "headers": [["Authorization", "Bearer s3cretvalue9"]],
        "env": [{"name": "DB_PASSWORD", "value": "s3cretvalue9"}],
        "credentials": {"user": "s3cretvalue9", "nested": ["s3cretvalue8"]},
        "password": 12345678,
        "token": None,
        "use_auth_token": True,
        "label_selector": {"ray.io/node": "head"},
        "max_new_tokens": 512,
    }
    clean = Redactor().redact_json(row)
    shown = json.dumps(clean)
    for secret in ("b1", "xyz12345", "fast", "s3cretvalue", "12345678"):
        assert f'"{secret}' not in shown
        assert f" {secret}" not in shown
    assert list(clean) == list(row)
    assert clean["task_id"] == row["task_id"]
    assert clean["runtime_env"]["pip"] == ["torch==2.0"]
    assert list(clean["runtime_env"]["env_vars"]) == ["MODE", "N"]
    assert json.loads(json.loads(clean["runtime_env_info"])["serialized_runtime_env"])
    assert clean["label_selector"] == row["label_selector"]
    assert (clean["token"], clean["use_auth_token"], clean["max_new_tokens"]) == (None, True, 512)
    assert Redactor().redact_json(clean) == clean


# ---------------------------------------------------------------- what has to stay


KEPT = [
    "Unauthenticated: RPC error: InvalidAuthToken: Authentication token is missing or incorrect",
    "AuthenticationError: Token authentication is enabled but no authentication token was found",
    "Unauthorized: Missing authentication token", "Forbidden: Invalid authentication token",
    "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN_PATH=/home/user/.ray/auth_token",
    "tokens=512", "max_new_tokens: 4096", "num_tokens=7, prompt_tokens=1234567", "'pad_token': '<pad>'",
    "eos_token='</s>', bos_token='<s>', pad_token_id=128001", "tokenizer='meta-llama/Llama-3.1-8B-Instruct'",
    "SyntaxError: Unexpected token: x", "SyntaxError: Unexpected token 'else', line 3",
    "JSONDecodeError: invalid token: line 1 column 5", "KeyError: 'token'", "the token bucket: refilled",
    f"Received cluster ID token: {'0a' * 28}", f"cluster ID token {'0a' * 28}",
    f"worker_id={'ab' * 28}, node_id={'12' * 28}, actor_id={'3c' * 16}, job_id=01000000",
    f"task_id={'4d' * 24} object_id={'5e' * 28} lease_id={'6f' * 32}", f"ObjectRef({'00ff' * 14})",
    "session_2026-11-21_07-34-50_739283_12345", "/tmp/ray/session_2026-11-21_07-34-50_739283_1/logs/raylet.out",
    "ray::f() ray::Actor.method ray::IDLE", "commit 0123456789abcdef0123456789abcdef01234567",
    "Started worker process with pid 6944, the token is 12", "startup_token=12", "--startup-token=RAY_WORKER_PLACEHOLDER",
    "request id 123e4567-e89b-12d3-a456-426614174000", "sha256=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "torch-2.6.0+cu124-cp311-cp311-manylinux_2_28_x86_64.whl#sha256=" + "9f86d081" * 8,
    "PythonFunctionDescriptor BundlePullRequestQueueAndMoreOfTheSame", "RAY_memory_usage_threshold=0.95",
    "GOOGLE_APPLICATION_CREDENTIALS=/home/user/sa.json", "PWD=/home/user", "OLDPWD=/tmp", "key=value", "kv_key=foo",
    "partition_key=2026-11-21", "primary_key: id", "KeyError: key: foo", "password=None", "token: str | None = None",
    "client = Client(token=token, password=self._password)", "api_key=os.environ['API_KEY']", "token = get_token()",
    "export TOKEN=$(cat /run/token)", "password: ${DB_PASSWORD}", "http://127.0.0.1:8265/api/jobs/", "git@github.com:a/b.git",
    "ssh://git@github.com/a/b.git", "Basic information about the cluster", "bearer token in syncer connection",
    "pass --redis-password to ray start", "E1121 04:58:43.606 31606 file.cc:378] Missing authorization header in request!",
    "Missing authorization header in request! Rejecting the request; it must have a token.",
    "object store 1.5 GiB, 1073741824 bytes, used 12345678901", "public_key=ab12cd34ef56ab12", "next_token=abc123def456abc",
    "    @     0x7f1234567890  (unknown)", "PYTHONPATH=/home/user:/home/user/lib", "SKLEARN_TASK_DISK", "disk-usage-of-the-object-store-1",
    "author: somebody", "authority=10.0.0.1:6379", "node:10.0.0.7 : 1.0", "compass: north", "secret: my-secret-name not found", "bypass=1",
]  # fmt: skip


@pytest.mark.parametrize("text", KEPT)
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    for shown in (text, f"{HEADER}{text}\n", json.dumps({"message": text})):
        assert Redactor().redact(shown) == shown


def copied(fixture: Path, target: Path, redactor: Redactor) -> None:
    for path in sorted(capture_of(fixture).rglob("*")):
        if path.is_file():
            copy = target / path.relative_to(capture_of(fixture))
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".gz":
                shutil.copy(path, copy)
            else:
                copy.write_bytes(redactor.redact_bytes(path.read_bytes()))


VARIED = [
    "auth-token-missing--ray-2.60.0--1-node", "auth-token-wrong--ray-2.60.0--1-node",
    "actor-init-failed--ray-2.9.3--1-node", "node-lost-cascade--ray-2.60.0--2-nodes",
    "oom-task--ray-2.60.0--1-node", "kernel-oom--ray-2.60.0--1-node", "pip-failed--ray-2.60.0--1-node",
    "json-logs--ray-2.60.0--1-node", "export-events--ray-2.60.0--1-node", "job-submitted--ray-2.60.0--1-node",
    "wrong-cluster--ray-2.60.0--1-node", "serve-unhealthy--ray-2.60.0--1-node", "raylet-killed--ray-2.40.0--1-node",
    "no-node-type-fits--ray-2.60.0--autoscaler", "spill-to-s3-without-boto3--ray-2.60.0--1-node",
    "healthy-libraries--ray-2.60.0--1-node", "task-hung-stack--ray-2.60.0--1-node",
]  # fmt: skip


def verdict(folder: Path) -> list[tuple[str, str, str]]:
    with open_capture(str(folder)) as capture:
        return verdict_of(engine.run(capture, strict=True))


def verdict_of(report: Report) -> list[tuple[str, str, str]]:
    roots = {d.rule for d in report.roots}
    return [(d.rule, "root" if d.rule in roots else "below", d.headline) for d in report.diagnoses]


@pytest.mark.parametrize("name", VARIED)
def test_redaction_leaves_the_diagnosis(name: str, tmp_path: Path) -> None:
    fixture = FIXTURES / name
    copied(fixture, tmp_path / "capture", Redactor())
    assert verdict(tmp_path / "capture") == verdict_of(report_of(fixture))


@pytest.mark.parametrize("name", VARIED[::4])
def test_anonymous_captures_have_the_same_diagnosis(name: str, tmp_path: Path) -> None:
    fixture = FIXTURES / name
    copied(fixture, tmp_path / "capture", Redactor(anonymize=True, hosts=["ray-node"]))
    assert [v[:2] for v in verdict(tmp_path / "capture")] == [
        v[:2] for v in verdict_of(report_of(fixture))
    ]


def test_fixtures_hold_nothing_to_redact() -> None:
    redactor = Redactor()
    for path in (path for capture in all_captures() for path in capture.rglob("*")):
        if path.is_file() and path.suffix != ".gz":
            redactor.redact_bytes(path.read_bytes())
    # They are scrubbed when they are made: whatever is replaced here is a mistake.
    assert redactor.summary == {}


# ---------------------------------------------------------------- streams


SOUP = [
    "RAY_AUTH_TOKEN=" + "fade1234" * 8, "AK" + "IA" + "FAKE" * 4, "-----BEGIN PRIVATE K" + "EY-----",
    "FAKE5678" * 8, "-----END PRIVATE K" + "EY-----", "\n", "\r\n", "\0", " ", '"', "'", "\\", "=", ":", ", ",
    "{", "}", "password", "token", "--token ", "env_vars", '{"env_vars": {"A": "b"}}', "- name: X_TOKEN\n  value: ",
    "<secret:token-1>", "<secret:", "Bearer ", "https://u:", "pw12345", "@host", "Cookie: a=", "x" * 30, "10.0.0.7", "é",
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(SOUP), st.text(max_size=6)), max_size=14).map("".join))
@example("AK" + "IA" + "FAKE" * 4 + "--token RAY_AUTH_TOKEN=" + "fade1234" * 8)
@example(f'- name: X_TOKEN\n  value: "RAY_AUTH_TOKEN={"fade1234" * 8}"-----BEGIN PRIVATE KEY-----')
@settings(max_examples=400, deadline=None)
def test_redacting_twice_is_redacting_once(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    once = Redactor(["fade1234fade1234"]).redact(text)
    assert Redactor(["fade1234fade1234"]).redact(once) == once
    assert once.count("\n") == text.count("\n")


@given(st.lists(st.sampled_from(SOUP), max_size=12).map("".join), st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_chunks_do_not_matter(text: str, size: int) -> None:
    data = text.encode()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert b"".join(Redactor().redact_stream(chunks)) == Redactor().redact_bytes(data)


def test_a_long_line_is_cut_between_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redactor_module, "_LONG", 2000)
    monkeypatch.setattr(redactor_module, "_OVERLAP", 500)
    rng = random.Random(1)
    parts = [random_part(ALNUM, 40, rng) for _ in range(300)]
    line = ", ".join(
        f'"X{n}_TOKEN": "{part}", "pad": {"1" * (n % 97)}' for n, part in enumerate(parts)
    )
    data = f"first\n{line}\nlast, token=abcDEF123\n".encode()
    for size in (1, 7, 333, 5000, 1 << 20) if len(data) < 50_000 else (7, 333, 5000):
        chunks = (data[at : at + size] for at in range(0, len(data), size))
        redactor = Redactor()
        output = b"".join(redactor.redact_stream(chunks)).decode()
        assert [part for part in parts if leaks(part, output)] == []
        assert output.startswith("first\n")
        assert output.endswith("last, token=<secret:token-301>\n")
        assert output.count("\n") == 3
        assert redactor.summary == {"token": 301}


def test_a_secret_longer_than_the_window_is_one_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redactor_module, "_LONG", 200)
    monkeypatch.setattr(redactor_module, "_OVERLAP", 50)
    data = b"token=" + b"Ab1" * 2000 + b" end"
    chunks = (data[at : at + 64] for at in range(0, len(data), 64))
    assert b"".join(Redactor().redact_stream(chunks)) == b"token=<secret:token-1> end"


HOSTILE = {
    "base64": "Ab1+" * 50_000,
    "word": "a" * 200_000,
    "hex": "0f" * 100_000,
    "blanks": "token" + " " * 200_000,
    "names": "token=" * 40_000,
    "quotes": "token='" * 30_000,
    "open quotes": "".join(f'x{n}_token: "' for n in range(15_000)),
    "escapes": 'token="' + "\\" * 200_000,
    "urls": "https://u:p" * 20_000 + " @",
    "users": "a@" * 100_000,
    "curls": "curl " * 40_000,
    "keys": ("-----BEGIN PRIVATE K" + "EY-----") * 5_000,
    "web tokens": ("ey" + "J") * 70_000,
    "hyphens": "sk-" * 70_000,
    "env_vars": 'env_vars: {"a": ' * 12_000,
    "pairs": '{"name": "x_token", ' * 10_000,
    "colons": "a:" * 100_000,
    "cookies": "cookie: a=" * 20_000,
    "dots": "1." * 100_000,
    "joints": ("a" * 20 + ".") * 10_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_line_takes_for_ever(name: str) -> None:
    begun = time.process_time()
    Redactor(anonymize=True).redact(HOSTILE[name])
    assert time.process_time() - begun < 5


# ---------------------------------------------------------------- addresses


def test_addresses_and_hosts_are_numbered() -> None:
    redactor = Redactor(anonymize=True, hosts=["node-a.example", "gpu7", "localhost"])
    text = (
        "10.0.0.7:6379 to 192.168.1.2, node:10.0.0.7, tcp://[fd00::7]:1234 gpu7 node-a.example gpu77\n"
        "127.0.0.1 0.0.0.0 ::1 ray==2.60.0.1 version 2.60.0.1 v1.2.3.4 07:34:50 ray::f std::dec a::b\n"
        "ip-10-0-0-7.ec2.internal http://10.0.0.7/ aa:bb:cc:dd:ee:ff [2026-11-21 07:34:50,739 I 283 293]\n"
    )
    output = redactor.redact(text)
    assert output == (
        "ip-1:6379 to ip-2, node:ip-1, tcp://[ip-3]:1234 host-1 host-2 gpu77\n"
        "127.0.0.1 0.0.0.0 ::1 ray==2.60.0.1 version 2.60.0.1 v1.2.3.4 07:34:50 ray::f std::dec a::b\n"
        "host-3 http://ip-1/ aa:bb:cc:dd:ee:ff [2026-11-21 07:34:50,739 I 283 293]\n"
    )
    assert redactor.redact(output) == output
    assert redactor.summary == {"host": 3, "ip": 5}


def test_addresses_stay_unless_asked() -> None:
    assert Redactor(hosts=["gpu7"]).redact("10.0.0.7 gpu7") == "10.0.0.7 gpu7"
