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
    UUID,
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

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BIP39 = [
    "abandon", "ability", "absent", "absorb", "abstract", "absurd", "abuse", "acid", "acoustic", "actress", "adapt",
    "adjust", "admit", "adult", "aisle", "amateur", "anchor", "ankle", "apology", "armor", "banana", "beach",
    "bicycle", "blanket", "bronze", "cabbage", "canyon", "salmon", "walnut", "zebra",
]  # fmt: skip


def _seed(build: Callable[[list[str]], str], count: int = 12) -> Maker:
    """Words of a wallet's list: ordinary ones, and only together a secret."""

    def made(rng: random.Random) -> Secret:
        words = rng.sample(BIP39, count)
        return Secret((" ".join(words[1:]),), build(words))

    return made


def _prefixed(before: str, alphabet: str = ALNUM, length: int = 40, after: str = "") -> Maker:
    """A token that only its issuer's prefix identifies; given in two parts, for the scanners of repositories."""
    return _text(
        lambda s: f"signing in with {before.replace('|', '')}{s}{after} now", alphabet, length
    )


# Added in a second round, from the services' public pages, before the redactor was measured with them.
TEXTS |= {
    # tokens with a prefix
    "vault legacy": _prefixed("s|.", ALNUM, 24),
    "vault legacy batch": _prefixed("b|.AAAAAQ", URLSAFE, 80),
    "hubspot": _prefixed("pa|t-na1-", UUID, 36),
    "dynatrace": _prefixed("dt0|c01.FAKEFAKEFAKEFAKEFAKEFAKE.", UPPER + "234567", 64),
    "clojars": _prefixed("CLOJ|ARS_", HEX, 60),
    "easypost": _prefixed("EZ|AK", ALNUM, 54),
    "fly": _prefixed("fm2|_lJPE", BASE64, 80),
    "planetscale": _prefixed("pscale|_tkn_", URLSAFE, 43),
    "prefect": _prefixed("pn|u_", ALNUM, 36),
    "rubygems": _prefixed("ruby|gems_", HEX, 48),
    "typeform": _prefixed("tf|p_", URLSAFE, 59),
    "brevo": _prefixed("xkey|sib-", HEX, 64, "-FAKEfake12345678"),
    "mailgun": _prefixed("key|-", HEX, 32),
    "square": _prefixed("sq0|atp-", URLSAFE, 22),
    "contentful": _prefixed("CF|PAT-", URLSAFE, 43),
    "circleci": _prefixed("CCI|PAT_FAKEfakeFAKEfakeFAKEfa_", HEX, 40),
    "buildkite": _prefixed("bk|ua_", HEX, 40),
    "cloudflare origin": _prefixed("v1|.0-fadefadefadefadefadefade-", HEX, 146),
    "airtable": _prefixed("pa|tFAKEfake123456.", HEX, 64),
    "alibaba": _prefixed("LT|AI5t", ALNUM, 20),
    "tencent": _prefixed("AK|ID", ALNUM, 32),
    "fireworks": _prefixed("f|w_", ALNUM, 24),
    "tavily": _prefixed("tv|ly-", ALNUM, 32),
    "modal": _prefixed("a|s-", ALNUM, 22),
    "runpod": _prefixed("rp|a_", UPPER + "0123456789", 40),
    "elevenlabs": _prefixed("s|k_", HEX, 48),
    "artifactory": _prefixed("AK|Cp8", ALNUM, 66),
    "sonarqube": _prefixed("sq|p_", HEX, 40),
    "nuget": _prefixed("oy|2", "abcdefghijklmnopqrstuvwxyz234567", 43),
    "neon": _prefixed("na|pi_", "abcdefghijklmnopqrstuvwxyz0123456789", 64),
    "supabase secret": _prefixed("sb|_secret_", URLSAFE, 31),
    "atlas": _prefixed("mdb|_sa_sk_", URLSAFE, 40),
    "openshift": _prefixed("sha|256~", URLSAFE, 43),
    "amazon mws": _prefixed("amzn|.mws.", UUID, 36),
    "firebase": _prefixed("AA|AAfake123:AP" + "A91b", URLSAFE, 134),
    "discord bot": _prefixed("MTAFAKEfakeFAKEfake12345.G|fake1.", URLSAFE, 38),
    "scaleway": _pair("SCW_SECRET_KEY", UUID, 36),
    "voyage": _prefixed("pa|-", URLSAFE, 43),
    "cerebras": _prefixed("cs|k-", "abcdefghijklmnopqrstuvwxyz0123456789", 48),
    "unkey": _prefixed("unkey|_", ALNUM, 24),
    "openrouter": _prefixed("sk|-or-v1-", HEX, 64),
    "posthog": _prefixed("ph|x_", ALNUM, 43),
    "launchdarkly": _prefixed("sd|k-", UUID, 36),
    "resend": _prefixed("re|_", ALNUM, 32),
    # webhooks and signed URLs
    "teams webhook": _text(
        lambda s: f"https://acme.webhook.office.com/webhookb2/fade1234-0000-4000-8000-fadefadefade@fade1234-0000-4000-8000-fadefadefade/IncomingWebhook/{s}/fade1234-0000-4000-8000-fadefadefade", HEX, 32),
    "zapier webhook": _text(lambda s: f"https://hooks.zapier.com/hooks/catch/1234567/{s}/", "abcdefghijklmnopqrstuvwxyz0123456789", 12),
    "chat webhook": _text(lambda s: f"https://chat.googleapis.com/v1/spaces/AAAA/messages?key=AI{'za'}x&token={s}", URLSAFE, 43),
    "ifttt webhook": _text(lambda s: f"https://maker.ifttt.com/trigger/done/with/key/{s}", URLSAFE, 22),
    "logic app": _text(lambda s: f"https://prod-1.westus.logic.azure.com/workflows/f/triggers/manual/paths/invoke?api-version=1&sv=1.0&sig={s}", URLSAFE, 43),
    "function code": _text(lambda s: f"https://app.azurewebsites.net/api/run?code={s}==&n=1", BASE64, 54),
    "oauth code": _text(lambda s: f"GET /callback?code={s}&state=x HTTP/1.1", URLSAFE, 40),
    "oss signature": _text(lambda s: f"https://b.oss.example/k?OSSAccessKeyId=x&Expires=1&Signature={s}%3D", ALNUM, 27),
    "akamai": _text(lambda s: f"https://h/x.m3u8?hdnts=exp=1790000000~acl=/*~hmac={s}", HEX, 64),
    "cloudfront policy": _text(lambda s: f"https://d.example/f?Policy=eyx&Signature={s}__&Key-Pair-Id=K1", ALNUM, 80),
    "websocket token": _text(lambda s: f"wss://h.example/ws?access_token={s}&v=2", URLSAFE, 40),
    "jupyter": _text(lambda s: f"http://127.0.0.1:8888/lab?token={s}", HEX, 48),
    # connection strings
    "snowflake url": _text(lambda s: f"snowflake://u:{s}@acct.example/db/schema?warehouse=w"),
    "clickhouse url": _text(lambda s: f"clickhouse+http://default:{s}@h:8123/default"),
    "odbc in url": _text(lambda s: f"mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BX%7D%3BUID%3Du%3BPWD%3D{s}%3B"),
    "socks proxy": _text(lambda s: f"socks5h://u:{s}@proxy.example:1080"),
    "http proxy": _pair("HTTPS_PROXY_PASSWORD", PASSWORD, 16),
    "git remote": _text(lambda s: f"origin  https://oauth2:{s}@git.example/team/repo.git (fetch)"),
    "s3 url": _text(lambda s: f"s3://AK{'IA'}FAKEFAKEFAKEFAKE:{s}@bucket/x", ALNUM, 40),
    "nats token": _text(lambda s: f"nats://{s}@nats.example:4222", ALNUM, 32),
    "sqs broker": _text(lambda s: f"broker=sqs://AK{'IA'}FAKEFAKEFAKEFAKE:{s}@", ALNUM, 40),
    "rabbit url": _text(lambda s: f"amqp://svc:{s}@mq-1.example,mq-2.example/prod"),
    "ado.net": _text(lambda s: f"Server=tcp:h.example,1433;User ID=u;Password={s};Encrypt=True;"),
    "psycopg": _text(lambda s: f"connect(\"dbname=x user=u password={s} host=h\")"),
    "ftp url": _text(lambda s: f"lftp -u user,{s} sftp://h.example"),
    "cifs": _text(lambda s: f"mount -t cifs //h/s /mnt -o username=u,password={s},vers=3.0"),
    "rclone inline": _text(lambda s: f"rclone ls :s3,access_key_id=x,secret_access_key={s}:bucket", ALNUM, 40),
    "redshift": _text(lambda s: f"redshift-1.example:5439:dev:awsuser:{s}"),
    "pgpass cockroach": _text(lambda s: f"crdb.example:26257:bank:root:{s}"),
    "pgpass socket": _text(lambda s: f"/var/run/postgresql:6543:*:app:{s}"),
    # options
    "mosquitto": _text(lambda s: f"mosquitto_pub -h h -u u -P {s} -t x -m y"),
    "ipmitool": _text(lambda s: f"ipmitool -I lanplus -H h -U admin -P {s} power status"),
    "minio client": _text(lambda s: f"mc alias set prod https://minio.example ACCESSFAKE {s}"),
    "az storage": _text(lambda s: f"az storage blob list --account-name a --account-key {s}==", BASE64, 86),
    "argocd": _text(lambda s: f"argocd login h --username admin --password {s} --insecure"),
    "oc login": _text(lambda s: f"oc login https://api.example:6443 --token={s}", URLSAFE, 43),
    "doctl": _text(lambda s: f"doctl auth init --access-token {s}", HEX, 64),
    "vault login": _text(lambda s: f"vault login token={s}", ALNUM, 26),
    "ssh-keygen": _text(lambda s: f"ssh-keygen -t ed25519 -N {s} -f key"),
    "httpie": _text(lambda s: f"http -a admin:{s} GET h/api"),
    "chpasswd": _text(lambda s: f"echo deploy:{s} | chpasswd"),
    "rdp": _text(lambda s: f"xfreerdp /u:admin /p:{s} /v:h"),
    "snmp": _text(lambda s: f"snmpwalk -v3 -l authPriv -u u -a SHA -A {s} h"),
    "kubectl credentials": _text(lambda s: f"kubectl config set-credentials ci --token={s}", URLSAFE, 40),
    "docker build arg": _text(lambda s: f"docker build --build-arg NPM_TOKEN={s} ."),
    "pip index": _text(lambda s: f"pip install --index-url https://__token__:{s}@pypi.example/simple x"),
    "ansible": _text(lambda s: f"web1 ansible_host=h ansible_user=u ansible_ssh_pass={s} ansible_port=22"),
    # databases
    "alter user": _text(lambda s: f"ALTER USER app WITH PASSWORD '{s}'"),
    "identified by": _text(lambda s: f"CREATE USER 'app'@'%' IDENTIFIED BY '{s}'"),
    "redis acl": _text(lambda s: f"ACL SETUSER app on >{s} ~* +@all"),
    "redis hello": _text(lambda s: f"HELLO 3 AUTH default {s}"),
    "redis config": _text(lambda s: f"CONFIG SET requirepass {s}"),
    "mongo user": _text(lambda s: f'db.createUser({{user: "app", pwd: "{s}", roles: []}})'),
    # headers
    "okta": _text(lambda s: f"Authorization: SSWS {s}", URLSAFE, 42),
    "splunk": _text(lambda s: f"Authorization: Splunk {s}", UUID, 36),
    "opsgenie": _text(lambda s: f"Authorization: GenieKey {s}", UUID, 36),
    "token token": _text(lambda s: f"Authorization: Token token={s}", ALNUM, 20),
    "oauth1": _text(lambda s: f'Authorization: OAuth oauth_consumer_key="x", oauth_signature="{s}%3D"', ALNUM, 27),
    "hawk": _text(lambda s: f'Authorization: Hawk id="x", ts="1", nonce="n", mac="{s}="', BASE64, 43),
    "goog key": _text(lambda s: f"x-goog-api-key: {s}", URLSAFE, 39),
    "access client": _text(lambda s: f"CF-Access-Client-Secret: {s}", HEX, 64),
    "consul": _text(lambda s: f"X-Consul-Token: {s}", UUID, 36),
    "functions key": _text(lambda s: f"x-functions-key: {s}==", BASE64, 54),
    "java session": _text(lambda s: f"JSESSIONID={s}; Path=/", UPPER + "0123456789", 32),
    "php session": _text(lambda s: f"PHPSESSID={s}", "abcdefghijklmnopqrstuvwxyz0123456789", 26),
    "express session": _text(lambda s: f"connect.sid=s%3A{s}.x", ALNUM, 32),
    "saml": _text(lambda s: f"POST /acs SAMLResponse=PHNhbWxw{s}", BASE64, 120),
    "code verifier": _pair("code_verifier", URLSAFE, 43),
    # files
    "netrc default": _text(lambda s: f"default login anonymous password {s}"),
    "npmrc password": _text(lambda s: f"//r.example/:_password={s}=", BASE64, 23),
    "identity token": _text(lambda s: json.dumps({"auths": {"r": {"identitytoken": s}}}), URLSAFE, 60),
    "cargo": _text(lambda s: f'[registry]\ntoken = "{s}"', ALNUM, 32),
    "maven": _text(lambda s: f"<server><id>x</id><username>u</username><password>{s}</password></server>"),
    "nuget config": _text(lambda s: f'<add key="ClearTextPassword" value="{s}" />'),
    "web.config": _text(lambda s: f'<add key="PaymentApiKey" value="{s}"/>'),
    "gradle": _text(lambda s: f"signing.keyPassword={s}\nsigning.keyId=1"),
    "jupyter config": _text(lambda s: f"c.ServerApp.token = '{s}'", HEX, 48),
    "airflow": _text(lambda s: f"[core]\nfernet_key = {s}=", URLSAFE, 43),
    "superset": _text(lambda s: f"SECRET_KEY = '{s}'", ALNUM, 42),
    "mysql dump": _text(lambda s: f"INSERT INTO users VALUES (1,'bob','$2y$10${s}')", ALNUM, 53),
    "git-credentials": _text(lambda s: f"https://bob:{s}@github.example"),
    "pem in one line": _text(lambda s: f'"private_key": "-----BEGIN {PRIVATE}-----\\n{s[:64]}\\n{s[64:]}\\n-----END {PRIVATE}-----\\n"', BASE64, 120),
    "kubeconfig client": _text(lambda s: f"- name: ci\n  user:\n    client-certificate-data: x\n    client-key-data: {s}", BASE64, 120),
    "compose": _text(lambda s: f"environment:\n  - POSTGRES_PASSWORD={s}\n  - MODE=x"),
    "terraform state": _text(lambda s: json.dumps({"attributes": {"master_password": s, "port": 5432}})),
    "vault init": _text(lambda s: f"Unseal Key 1: {s}=", BASE64, 43),
    "root token": _text(lambda s: f"Initial Root Token: {s}", ALNUM, 26),
    "wlan": _text(lambda s: f"psk={s}\nkey_mgmt=WPA-PSK"),
    # calls
    "fernet": _text(lambda s: f"Fernet(b'{s}=')", URLSAFE, 43),
    "jwt.encode": _text(lambda s: f"jwt.encode({{'sub': 1}}, '{s}', algorithm='HS256')"),
    "minio call": _text(lambda s: f"Minio('h:9000', 'FAKEACCESS', '{s}', secure=False)"),
    "paramiko": _text(lambda s: f"ssh.connect('h', username='u', password='{s}')"),
    "boto3": _text(lambda s: f"boto3.client('s3', aws_access_key_id='x', aws_secret_access_key='{s}')", BASE64, 40),
    "neptune call": _text(lambda s: f"neptune.init_run(project='a/b', api_token='{s}')", ALNUM, 80),
    "openai attribute": _text(lambda s: f"openai.api_key = '{s}'", ALNUM, 48),
    "digest auth": _text(lambda s: f"HTTPDigestAuth('admin', '{s}')"),
    "headers dict": _text(lambda s: f"headers={{'Authorization': 'Token {s}', 'Accept': '*/*'}}", HEX, 40),
    # a blank after the name
    "PASSWORD blank": _text(lambda s: f"PASSWORD {s}"),
    "password blank": _text(lambda s: f"connect bob password {s}"),
    "DB_PASSWORD blank": _text(lambda s: f"  DB_PASSWORD     {s}"),
    "token blank": _text(lambda s: f"TOKEN {s}"),
    "passwords list": _text(lambda s: f"passwords: ['{s}']"),
    "password arrow": _text(lambda s: f"password -> {s}"),
    # names
    "SALT": _pair("SALT", ALNUM, 24),
    "hash salt": _pair("password_salt", HEX, 32),
    "otp": _pair("otp", ALNUM, 16),
    "totp seed": _pair("TOTP_SECRET", UPPER + "234567", 32),
    "aes key": _pair("aes_key", HEX, 64),
    "hmac key": _pair("hmac_key", HEX, 64),
    "decryption key": _pair("decryptionKey", HEX, 48),
    "creds": _pair("REGISTRY_CREDS", ALNUM, 24),
    "basic auth": _text(lambda s: f"BASIC_AUTH=admin:{s}"),
    "german": _pair("db_passwort", ALNUM, 16),
    "auth key": _pair("authkey", HEX, 32),
    "unseal key": _pair("UNSEAL_KEY", BASE64, 44),
    "webhook url key": _pair("webhook_key", HEX, 32),
    "mfa": _pair("mfa_secret", ALNUM, 16),
    "api secret": _pair("apiSecret", HEX, 40),
    "session key": _pair("SESSION_SECRET", HEX, 40),
    "comet old": _pair("COMET_KEY", ALNUM, 25),
    "clearml": _pair("CLEARML_API_SECRET_KEY", ALNUM, 40),
    "mlflow token": _pair("MLFLOW_TRACKING_TOKEN", ALNUM, 40),
    "ray address token": _pair("RAY_JOB_HEADERS_TOKEN", HEX, 48),
    # phrases
    "seed phrase": _seed(lambda w: f"seed phrase: {' '.join(w)}"),
    "seed phrase, blank": _seed(lambda w: f"Your seed phrase {' '.join(w)}"),
    "seed words": _seed(lambda w: f"seed words = {' '.join(w)}", 24),
    "recovery phrase, 24": _seed(lambda w: f"Secret Recovery Phrase: {' '.join(w)}", 24),
    "mnemonic, blank": _seed(lambda w: f"mnemonic {' '.join(w)}"),
    "mnemonic list": _seed(lambda w: f"mnemonic: {w!r}"),
    "mnemonic option": _seed(lambda w: f"wallet import --mnemonic '{' '.join(w)}'"),
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
    # The second round: measured before anything was fixed.
    "serviceAccountToken: mounted", "automountServiceAccountToken: false", "token: valid", "password: expired", "secret: rotated",
    "password authentication failed for user \"bob\"", "Password for user bob:", "password policy2024 applies", "token bucket_17 refilled",
    "loss/train_key_accuracy=0.917", "metrics: {'val/auth_loss': 0.31, 'token_acc': 0.82}", "perplexity_per_token: 12.4", "tokens/s=18231.4",
    "git sha 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b is ahead of main", "HEAD is now at 3b1f2c9 Fix token counts", "revision: v1.0-3b1f2c9-dirty",
    f"actor_id={'3c' * 16} placement_group_id={'7a' * 18}", f"lease_id={'6f' * 28} spilled", "uuid=0d9f1c2e-7b4a-4c3d-9e8f-1a2b3c4d5e6f",
    "/mnt/data/keys/2026/11/part-00017-3f2a9c8e-tokenized.parquet", "/home/user/.cache/huggingface/hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcb8a",
    "PYTHONHASHSEED=0", "PYTHONHASHSEED=4294967295", "seed=1234567890", "hash_seed: 0x9e3779b97f4a7c15", "salt_length=16", "hash salt: none",
    "tokenizer.json: vocab_size=128256, bos_token_id=128000", "special_tokens_map={'pad_token': '[PAD]', 'mask_token': '[MASK]'}",
    "use_fast_tokenizer=True trust_remote_code=False", "token_type_ids: tensor([[0, 0, 1]])", "sk-learn==1.5.2 installed", "sk-SK locale",
    "pre-commit hook key-sort passed", "fw_version=1.2.3 re_order=2 rpa_enabled=true", "pat-tern matched 3 of 12", "as-is b.shape s.astype",
    "s.reset_index().groupby('worker').mean()", "b.AAA is undefined", "HELLO 3 times", "code=403 reason=Forbidden", "exit code=139", "zip_code=94105",
    "http status_code=502 error_code=E1234", "mac=aa:bb:cc:dd:ee:ff", "hmac=sha256", "10.0.0.2:6379:ray:worker:idle", "trace.py:1234:load:step:done",
    "seed phrase is required to restore the wallet", "the mnemonic for this opcode is movaps", "mnemonic add sub mul div",
    "password hashing took 31 ms", "Enter password", "no token given", "key rotation enabled", "sid=worker-17", "connect.side=left", "otp-28.1 (erlang)",
    "basic_auth=enabled", "creds=none", "PASSWORD_MIN_LENGTH=12", "TOKEN_EXPIRES_IN=3600", "auth_key_path=/etc/keys/auth.pem", "aes_key_bits=256",
    "RAY_RUNTIME_ENV_HOOK=my.module.hook", "cookies_enabled=true", "credential_process = /usr/bin/fetch", "token_budget_per_gpu=4096",
    "CUDA_VISIBLE_DEVICES=GPU-8f2c6a1e-93b1-4d5e-b7c2-0a1b2c3d4e5f", "NCCL_SOCKET_IFNAME=eth0 NCCL unique id 0x7f3a2b1c",
    "wandb: Run data is saved locally in wandb/run-20261121_073450-8f2c6a1e", "s3://ckpt/run_8f2c6a1e93b14d5e/rank-00003.distcp",
]  # fmt: skip
