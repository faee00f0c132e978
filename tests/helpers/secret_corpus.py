"""Secrets, where they are written, and harmless texts that look alike: made at run time, all of them fakes.

`KINDS` are secrets as programs know them; `PLACEMENTS` are the eight places in which raydoctor meets them.
No secret, and nothing that a scanner takes for one, is in the repository: prefixes are put together from parts.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from tests.fixtures.test_redact import (
    ALNUM,
    BASE64,
    COMPOSITE,
    HEX,
    KINDS,
    PASSWORD,
    URLSAFE,
    make,
    random_part,
)

PRIVATE = "PRIVATE K" + "EY"
HEADER = "[2026-11-21 07:34:50,739 I 283 293] (raylet) agent_manager.cc:80: "


class Secret(NamedTuple):
    """One secret, made for one trial."""

    parts: tuple[str, ...]
    """What must not get through: any eight characters of one of these."""
    text: str
    """As a program writes it, on one or more lines."""
    name: str = ""
    value: str = ""
    """Set where it is a name and a value."""


Maker = Callable[[random.Random], Secret]


def _named(label: str) -> Maker:
    kind = KINDS[label]

    def made(rng: random.Random) -> Secret:
        secret, part = make(kind, rng)
        return Secret((part,), f"{kind.name}={secret}", kind.name, secret)

    return made


def _placed(label: str) -> Maker:
    alphabet, length, build = COMPOSITE[label]

    def made(rng: random.Random) -> Secret:
        part = random_part(alphabet, length, rng)
        return Secret((part,), build(part).rstrip("\n"))

    return made


def _pair(name: str, alphabet: str = ALNUM, length: int = 20) -> Maker:
    def made(rng: random.Random) -> Secret:
        part = random_part(alphabet, length, rng)
        return Secret((part,), f"{name}={part}", name, part)

    return made


def _text(build: Callable[[str], str], alphabet: str = ALNUM, length: int = 20) -> Maker:
    def made(rng: random.Random) -> Secret:
        part = random_part(alphabet, length, rng)
        return Secret((part,), build(part))

    return made


WORDS = [
    "crimson",
    "otter",
    "ladder",
    "quantum",
    "velvet",
    "harbor",
    "pigeon",
    "thunder",
    "saddle",
    "copper",
    "maple",
    "rocket",
]


def _phrase(build: Callable[[str], str]) -> Maker:
    def made(rng: random.Random) -> Secret:
        phrase = " ".join(rng.sample(WORDS, 5))
        return Secret((phrase,), build(phrase))

    return made


def _coded(build: Callable[[str], str], name: str = "DB_PASSWORD") -> Maker:
    """The secret is a whole coded text: no eight characters of the code, nor of what it says."""

    def made(rng: random.Random) -> Secret:
        part = random_part(ALNUM, 24, rng)
        text = build(f"{name}={part}")
        return Secret((part, text), text)

    return made


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _pem(label: str) -> Maker:
    def made(rng: random.Random) -> Secret:
        body = random_part(BASE64, 150, rng)
        lines = [body[at : at + 64] for at in range(0, len(body), 64)]
        text = "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"])
        return Secret((body[:120],), text)

    return made


TEXTS: dict[str, Maker] = {
    # calls
    "login(key)": _text(lambda s: f'wandb.login(key="{s}")', HEX, 40),
    "login(positional)": _text(lambda s: f"huggingface_hub.login('h{'f_'}{s}')", ALNUM, 34),
    "auth tuple": _text(lambda s: f"requests.get(url, auth=('admin', '{s}'))"),
    "BasicAuth": _text(lambda s: f"BasicAuth(login='admin', password='{s}', encoding='latin1')"),
    "HTTPBasicAuth": _text(lambda s: f'HTTPBasicAuth("admin", "{s}")'),
    "access_key call": _text(lambda s: f"Client('h:9000', access_key='minio', secret_key='{s}')"),
    "credentials object": _text(lambda s: f"Credentials(user='u', secret='{s}', region=None)"),
    "SecretStr": _text(lambda s: f"SecretStr('{s}')"),
    "dataclass": _text(lambda s: f"Settings(host='h', db_password='{s}', port=5432)"),
    "nested dict": _text(lambda s: f"{{'db': {{'user': 'u', 'pass': '{s}'}}, 'n': 3}}", PASSWORD),
    "bytes repr": _text(lambda s: f"{{b'password': b'{s}', b'user': b'u'}}"),
    "set_password": _text(lambda s: f'client.set_password("admin", "{s}")'),
    # options
    "mysql -p": _text(lambda s: f"mysql -u root -p{s} -h db"),
    "mysql -p, spaced": _text(lambda s: f"mysqldump -u root -p {s} -h db"),
    "-w": _text(lambda s: f"ldapsearch -x -D cn=admin -w {s} -b dc=x"),
    "docker login": _text(lambda s: f"docker login -u bot -p {s} registry.example"),
    "redis-cli -a": _text(lambda s: f"redis-cli -h r -a {s} ping"),
    "htpasswd -b": _text(lambda s: f"htpasswd -b /etc/users admin {s}"),
    "openssl": _text(lambda s: f"openssl rsa -in k.pem -passin pass:{s}"),
    "gpg": _text(lambda s: f"gpg --batch --passphrase {s} -d f.gpg"),
    "keytool": _text(lambda s: f"keytool -list -storepass {s} -keystore k.jks"),
    "wget": _text(lambda s: f"wget --http-user=u --http-password={s} https://h/x"),
    "aws configure": _text(lambda s: f"aws configure set aws_secret_access_key {s}", BASE64, 40),
    "helm --set": _text(lambda s: f"helm install x y --set auth.password={s},replicas=2"),
    "kubectl literal": _text(lambda s: f"kubectl create secret generic x --from-literal=password={s}"),
    "docker -e": _text(lambda s: f"docker run -e DB_PASSWORD={s} -p 8080:80 image:1.2"),
    "smbclient": _text(lambda s: f"smbclient //h/share -U user%{s}"),
    "sshpass glued": _text(lambda s: f"sshpass -p{s} ssh h"),
    "--auth": _text(lambda s: f"tool --auth admin:{s} --n 3"),
    "sqlcmd -P": _text(lambda s: f"sqlcmd -S db -U sa -P {s} -Q x"),
    "zip -P": _text(lambda s: f"unzip -P {s} data.zip"),
    # URLs
    "url with @": _text(lambda s: f"postgresql://u:{s[:9]}@{s[9:]}@db.example:5432/x"),
    "url with /": _text(lambda s: f"postgresql://u:{s[:9]}/{s[9:]}@db.example:5432/x"),
    "url with :": _text(lambda s: f"mysql://u:{s[:9]}:{s[9:]}@db.example:3306/x"),
    "url with #": _text(lambda s: f"amqp://u:{s[:9]}#{s[9:]}@mq.example/v"),
    "url with ?": _text(lambda s: f"mongodb+srv://u:{s[:9]}?{s[9:]}@c.example/x"),
    "url with @/:#": _text(lambda s: f"redis://:{s[:5]}@{s[5:9]}/{s[9:13]}:{s[13:16]}#{s[16:]}@r.example:6379/0"),
    "query key": _text(lambda s: f"https://api.example/v1/x?key={s}&page=2", URLSAFE, 39),
    "query encoded": _text(lambda s: f"https://h/cb?next=https%3A%2F%2Fh%3Ftoken%3D{s}%26x%3D1"),
    "otpauth": _text(lambda s: f"otpauth://totp/acme?secret={s}&issuer=acme", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 32),
    "smtp url": _text(lambda s: f"smtps://user%40example.com:{s}@smtp.example:465"),
    "cloudfront": _text(lambda s: f"https://d.cloudfront.example/f?Expires=1&Signature={s}~~&Key-Pair-Id=APKA", ALNUM, 60),
    # Kubernetes, Helm, YAML
    "k8s env": _text(lambda s: f"env:\n- name: DB_PASSWORD\n  value: {s}\n- name: MODE\n  value: fast"),
    "k8s env, quoted": _text(lambda s: f'- name: HF_TOKEN\n  value: "{s}"'),
    "k8s env, value first": _text(lambda s: f"- value: {s}\n  name: API_TOKEN"),
    "k8s data": _text(lambda s: f"kind: Secret\nmetadata:\n  name: db\ndata:\n  DB: {_b64(s)}\n  user: YWRtaW4="),
    "k8s data, first": _text(lambda s: f"apiVersion: v1\ndata:\n  config.json: {_b64(s)}\nkind: Secret\ntype: Opaque"),
    "k8s stringData": _text(lambda s: f"kind: Secret\nstringData:\n  DB: {s}\n  other: x"),
    "k8s secret json": _text(lambda s: json.dumps({"kind": "Secret", "data": {"db": _b64(s)}})),
    "helm values": _text(lambda s: f"postgresql:\n  auth:\n    username: u\n    password: {s}\n    database: x"),
    "yaml block": _text(lambda s: f"password: |-\n  {s}\nhost: h"),
    "yaml folded": _text(lambda s: f"client_secret: >\n  {s[:10]}\n  {s[10:]}\nhost: h"),
    "yaml list": _text(lambda s: f"tokens:\n  - {s}\nhost: h"),
    "kubeconfig": _text(lambda s: f"users:\n- name: admin\n  user:\n    token: {s}", URLSAFE, 60),
    "kubeconfig key": _text(lambda s: f"user:\n  client-key-data: {s}", BASE64, 120),
    # files
    "netrc": _text(lambda s: f"machine api.example login bot password {s}"),
    "netrc block": _text(lambda s: f"machine api.example\n  login bot\n  password {s}"),
    "pgpass": _text(lambda s: f"db.example:5432:app:admin:{s}"),
    "my.cnf": _text(lambda s: f"[client]\nuser=root\npassword={s}\nhost=db"),
    "htpasswd": _text(lambda s: f"admin:$apr1$FAKEsalt${s}", ALNUM, 22),
    "shadow": _text(lambda s: f"root:$6$FAKEsalt${s}:19700:0:99999:7:::", ALNUM, 86),
    "bcrypt": _text(lambda s: f"hash is $2b$12${s}", ALNUM, 53),
    "pip.conf": _text(lambda s: f"index-url = https://bot:{s}@pypi.example/simple"),
    "s3cfg": _text(lambda s: f"[default]\naccess_key = x\nsecret_key = {s}"),
    "rclone": _text(lambda s: f"[remote]\ntype = sftp\npass = {s}"),
    "tfvars": _text(lambda s: f'db_password = "{s}"\nregion = "x"'),
    "kaggle.json": _text(lambda s: json.dumps({"username": "u", "key": s}), HEX, 32),
    "docker auth": _text(lambda s: json.dumps({"auths": {"r.example": {"auth": _b64("u:" + s)}}})),
    "service account": _text(
        lambda s: json.dumps({"type": "service_account", "private_key_id": s, "client_id": "1"}), HEX, 40
    ),
    "hadoop xml": _text(lambda s: f"<property><name>fs.s3a.secret.key</name><value>{s}</value></property>"),
    "spark": _text(lambda s: f"spark.hadoop.fs.s3a.secret.key={s}"),
    "azure fs": _text(lambda s: f"fs.azure.account.key.acct.dfs.core.windows.net={s}"),
    "jaas": _text(lambda s: f'ScramLoginModule required username="u" password="{s}";'),
    "wireguard": _text(lambda s: f"[Interface]\nPrivateKey = {s}=", BASE64, 43),
    "wpa": _text(lambda s: f'network={{ ssid="x" psk="{s}" }}'),
    "jwk": _text(lambda s: json.dumps({"kty": "oct", "k": s}), URLSAFE, 43),
    "Dockerfile": _text(lambda s: f"ENV API_TOKEN {s}"),
    "powershell": _text(lambda s: f'$env:API_TOKEN = "{s}"'),
    "fish": _text(lambda s: f"set -x API_TOKEN {s}"),
    "xtrace": _text(lambda s: f"+ DB_PASSWORD={s}"),
    "lowercase export": _text(lambda s: f"export pgpassword={s}"),
    # prose
    "password is": _text(lambda s: f"the password is {s}, write it down"),
    "password is quoted": _text(lambda s: f'Your new password is: "{s}"'),
    "token is": _text(lambda s: f"the access token is {s}"),
    "using password": _text(lambda s: f"connecting as root using password {s}"),
    "with password": _text(lambda s: f"logged in with password '{s}'"),
    "password to": _text(lambda s: f"password set to {s}"),
    "pw=": _text(lambda s: f"user=root pw={s} host=db"),
    "pw:": _text(lambda s: f"user: root, pw: {s}"),
    "pwd=": _text(lambda s: f"uid=root;pwd={s};db=x"),
    "pass:": _text(lambda s: f"user: root / pass: {s}"),
    "passcode": _text(lambda s: f"passcode={s}"),
    "passkey": _text(lambda s: f"passkey: {s}"),
    "passphrase": _phrase(lambda s: f'passphrase="{s}"'),
    "passphrase bare": _phrase(lambda s: f"passphrase: {s}"),
    "spaces in a password": _phrase(lambda s: f"DB_PASSWORD='{s}'"),
    "api key:": _text(lambda s: f"API key: {s}"),
    "incorrect key": _text(lambda s: f"Incorrect API key provided: {s}."),
    # headers
    "x-auth-token": _text(lambda s: f"X-Auth-Token: {s}"),
    "private-token": _text(lambda s: f"PRIVATE-TOKEN: {s}"),
    "vault token": _text(lambda s: f"X-Vault-Token: {s}"),
    "subscription key": _text(lambda s: f"Ocp-Apim-Subscription-Key: {s}", HEX, 32),
    "api-key": _text(lambda s: f"api-key: {s}"),
    "token header": _text(lambda s: f"Authorization: token {s}"),
    "plain authorization": _text(lambda s: f"authorization: {s}"),
    "ApiKey": _text(lambda s: f"Authorization: ApiKey {s}"),
    "proxy basic": _text(lambda s: f"Proxy-Authorization: Basic {_b64('u:' + s)}"),
    "session cookie": _text(lambda s: f"Cookie: sessionid={s}; theme=dark"),
    "digest": _text(lambda s: f'Authorization: Digest username="u", response="{s}", nc=1', HEX, 32),
    "shared key": _text(lambda s: f"Authorization: SharedKey acct:{s}=", BASE64, 43),
    # codes
    "base64 of an assignment": _coded(_b64),
    "base64 of json": _coded(lambda t: _b64(json.dumps(dict([t.split("=")])))),
    "base64 of an environment": _coded(lambda t: _b64(f"HOME=/root\n{t}\nMODE=x\n")),
    "base64 url-safe": _coded(lambda t: base64.urlsafe_b64encode(f"x?>{t}".encode()).decode().rstrip("=")),
    "url-encoded": _text(lambda s: f"db_password%3D{s}%26x%3D1"),
    "double url-encoded": _text(lambda s: f"db_password%253D{s}%2526x"),
    "html": _text(lambda s: f"password=&quot;{s}&quot;"),
    "unicode escapes": _text(lambda s: f'{{"u":"password\\u003d{s}\\u0026x"}}'),
    "json in json in json": _text(
        lambda s: json.dumps({"a": json.dumps({"b": json.dumps({"client_secret": s, "n": 1})})})
    ),
    "hex escapes": _text(lambda s: "b'password\\x3d" + s + "\\x00x'"),
    # keys
    "rsa key": _pem("RSA " + PRIVATE),
    "pgp key": _pem("PGP " + PRIVATE + " BLOCK"),
    "openssh key": _pem("OPENSSH " + PRIVATE),
    # names
    "comet option": _pair("COMET_API_KEY"),
    "pgpassword": _pair("PGPASSWORD", PASSWORD, 16),
    "mysql_pwd": _pair("MYSQL_PWD", PASSWORD, 16),
    "redis auth": _pair("REDISCLI_AUTH", ALNUM, 20),
    "sudo pass": _pair("SUDO_PASS", PASSWORD, 14),
    "secret key base": _pair("SECRET_KEY_BASE", HEX, 64),
    "app secret": _pair("appSecret", ALNUM, 24),
    "refresh token": _pair("refreshToken", URLSAFE, 40),
    "csrf": _pair("csrf_token", URLSAFE, 40),
    "otp secret": _pair("OTP_SECRET", ALNUM, 32),
    "snowflake passphrase": _pair("PRIVATE_KEY_PASSPHRASE", PASSWORD, 16),
    "hf hub": _pair("HUGGING_FACE_HUB_TOKEN", ALNUM, 34),
    "sasl": _pair("KAFKA_SASL_PASSWORD", PASSWORD, 16),
    "connection string": _pair("AZURE_STORAGE_CONNECTION_STRING", ALNUM, 40),
    "webhook": _pair("WEBHOOK_SECRET", ALNUM, 32),
    "salt": _pair("DJANGO_SECRET_KEY", PASSWORD, 50),
    "encryption": _pair("DATA_ENCRYPTION_KEY", BASE64, 44),
    "user password": _pair("userPassword", PASSWORD, 16),
    "bearer": _pair("BEARER_TOKEN", ALNUM, 40),
}  # fmt: skip

ALL: dict[str, Maker] = {
    **{label: _named(label) for label in KINDS},
    **{label: _placed(label) for label in COMPOSITE if label not in ("ssh key body",)},
    **TEXTS,
}


# ---------------------------------------------------------------- the eight places


def _option(name: str) -> str:
    return "--" + name.lower().strip("_").replace("_", "-")


def argv(secret: Secret) -> list[str]:
    """A command line's elements; those of a shell's text are its words."""
    if secret.name:
        return ["python", "train.py", _option(secret.name), secret.value, "--epochs", "3"]
    return ["bash", "-c", f"{secret.text} && python train.py", "--epochs", "3"]


def environ(secret: Secret) -> bytes:
    pair = secret.text if secret.name else f"STARTUP={secret.text}"
    return f"PATH=/bin\0{pair}\0HOME=/home/user\0".encode()


def runtime_env(secret: Secret, *, variable: str = "SETTINGS") -> dict[str, object]:
    if secret.name:
        return {"env_vars": {secret.name: secret.value, "MODE": "fast"}, "pip": ["torch"]}
    return {"env_vars": {variable: secret.text, "MODE": "fast"}, "pip": ["torch"]}


def _local(secret: Secret) -> dict[str, str]:
    """As py-spy prints a frame's locals: name and repr."""
    if secret.name:
        return {
            "config": f"{{'lr': 0.1, '{secret.name}': {secret.value!r}, 'n': 3}}",
            "self": "<T object>",
        }
    return {"command": repr(secret.text), "args": repr(["x", secret.text]), "n": "3"}


def _yaml(secret: Secret) -> str:
    if secret.name:
        return f"env:\n  {secret.name}: {secret.value}\n  mode: fast\n"
    if "\n" in secret.text:
        return (
            "job:\n" + "".join(f"  {line}\n" for line in secret.text.split("\n")) + "mode: fast\n"
        )
    return f"job:\n  args:\n  - |\n    {secret.text}\n  mode: fast\n"


def _json(secret: Secret) -> str:
    if secret.name:
        return json.dumps({"lr": 0.1, "settings": {secret.name: secret.value, "n": 3}}) + "\n"
    return json.dumps({"levelname": "I", "message": f"got {secret.text} here", "pid": 1}) + "\n"


def _coloured(secret: Secret) -> str:
    """Names, separators and values in colours of their own, as loggers and `jq` write them."""
    text = re.sub(r"(\w)([=:]+ ?[\"']?)(?=\S)", "\\1\x1b[0m\\2\x1b[1;32m", secret.text)
    return "".join(f"\x1b[36m(f pid=6944)\x1b[0m {line}\x1b[0m\n" for line in text.split("\n"))


def _wrapped(secret: Secret, width: int = 60) -> str:
    """As a terminal that many columns wide shows it."""
    lines = (f"2026-11-21 07:35:03,092 INFO worker.py:26 -- started {secret.text}").split("\n")
    cut = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    return "\n".join(cut) + "\nand so on\n"


TEXT_PLACEMENTS: dict[str, Callable[[Secret], str]] = {
    "argv": lambda s: "\0".join(argv(s)) + "\0",
    "environ": lambda s: environ(s).decode(),
    "runtime_env": lambda s: json.dumps(runtime_env(s)) + "\n",
    "locals": lambda s: "\n".join(f"    {n} = {v}" for n, v in _local(s).items()) + "\n",
    "json": _json,
    "yaml": _yaml,
    "coloured": _coloured,
    "wrapped": _wrapped,
}
"""The eight places as text: what a log, an archive or a screen holds."""


def leaked(secret: Secret, shown: str) -> list[str]:
    """Eight characters in a row of a secret that an output holds, however it is broken into lines."""
    flat = re.sub(r"\x1b\[[\d;]*m", "", shown)
    outputs = (flat, re.sub(r"\s*\n\s*", "", flat))
    found = []
    for part in secret.parts:
        size = min(8, len(part))
        pieces = (part[at : at + size] for at in range(len(part) - size + 1))
        found += [piece for piece in pieces if any(piece in output for output in outputs)]
        coded = quote(part, safe="")
        found += [coded] if coded != part and coded in outputs[0] else []
    return found


# ---------------------------------------------------------------- what has to stay

HARMLESS = [
    "cache_key=user-profile-4711-abc9", "routing_key=orders.created.v2", "monkey=see-monkey-do-2", "turkey: 12 kg",
    "keyboard=us-intl-104", "primary_key=customer_id_2026", "sort_key=2026-11-21#0042", "partition_key=eu-west-1a",
    "sorted(rows, key=lambda r: r.created_at2)", "max(items, key=len)", "key=step_000123/metrics.json",
    "s3://bucket-7/models/llama3/key=abc123/part-0001.parquet", "Key: checkpoints/epoch-12/step-90000.pt",
    "git checkout 0123456789abcdef0123456789abcdef01234567", "commit=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    f"worker_id={'ab' * 28}", f"node_id: {'12' * 28}", f"ObjectRef({'00ff' * 14})", "job_id=01000000",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "image: repo/app@sha256:" + "9f86d081" * 8, "md5=d41d8cd98f00b204e9800998ecf8427e",
    "request 123e4567-e89b-12d3-a456-426614174000 done", "etag: \"33a64df551425fcc55e4d42a148795d9f25f89d4\"",
    "tokenizer='meta-llama/Llama-3.1-8B-Instruct'", "num_tokens=7 max_tokens=4096", "max_new_tokens: 512",
    "token_ids=[128000, 9906, 1917]", "pad_token='<pad>' eos_token='</s>'", "tokens per second: 5123.4",
    "--token-budget 4096 --epochs 3", "prompt_tokens=1234, completion_tokens=56", "token_count: 99182",
    "--password-file /run/secrets/db", "password_file=/etc/app/password.txt", "RAY_AUTH_TOKEN_PATH=/home/user/.ray/auth_token",
    "GOOGLE_APPLICATION_CREDENTIALS=/home/user/sa.json", "RAY_AUTH_MODE=token", "auth_mode=token",
    "KeyError: 'password'", "KeyError: 'api_key'", "secretary=alice", "passthrough=true", "bypass_cache=1",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFakeFakeFakeFakeFakeFakeFakeFakeFakeFake01 user@host", "author=Jane Doe",
    "authority=10.0.0.1:6379", "host=db-primary-01.internal.example.com", "/home/user/keys/project-7/readme.md",
    "hotkey=ctrl+shift+p", "donkey: shrek-2001", "whiskey=lagavulin16", "jockey-id=rider77", "compass=north", "pass 3 of 5 finished",
    "passed=17 failed=2", "passes: 12", "the password is wrong", "the password is not set", "invalid password for user bob",
    "password is required", "token is missing or expired", "secret not found: app-secrets", "use --password to set it",
    "signature=(a: int, b: str) -> None", "function signature: train(x)", "design=v2", "sigma=0.75", "SIGTERM received",
    "patience=5 path=/tmp/x1", "pattern=part-*.parquet", "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "-p 8080:80 -w /workspace", "docker run -p 127.0.0.1:8080:80 -w /app image", "ssh -p 2222 host", "mkdir -p /data/run-17/logs",
    "python -m http.server -p 8000", "cp -p a b", "pytest -p no:cacheprovider", "git log -p src/main.py", "name: trainer\nvalue: 17",
    "http://127.0.0.1:8265/api/jobs/?page=2", "git@github.com:acme/repo.git", "user@host:/data/run_17", "ssh://git@github.com/a/b.git",
    "data:\n  mode: fast\n  retries: 3", "login attempts: 3", "login(user) took 3.1 s", "basic usage: run train.py",
    "session_2026-11-21_07-34-50_739283_12345", "batch_key: image_0001.jpg", "foreign_key=orders_2026_id", "dict_keys(['loss', 'acc1'])",
    "public_key=ab12cd34ef56ab12", "key_name=my-keypair-2", "kv_key=@namespace_fun:abc123def456", "next_token=abc123def456abc",
    "torch-2.6.0+cu124-cp311-cp311-manylinux_2_28_x86_64.whl", "ray.exceptions.RayTaskError(ValueError): ray::train() (pid=1, ip=10.0.0.1)",
    "Accuracy was 0.91; password policy: strict", "credentials: default chain", "key: value", "column_key=0007-total",
    "PWD=/home/user/work", "ActorDiedError: The actor died unexpectedly", "env_vars: 3 entries", "data_key: features",
]  # fmt: skip
