"""What to do about a runtime environment that could not be set up."""

from __future__ import annotations

from raydoctor.model import paste
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.setup.errors import Kind, SetupError

DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html"
_DEBUGGING = f"{DOC}#debugging"

IMAGE = Remedy(
    "Build the packages into the image or environment of the nodes, and drop them from runtime_env",
    ("RUN pip install …   # in the Dockerfile of the cluster's image",),
    doc=DOC,
)
KEPT = Remedy(
    "Get past the failure that the agent keeps for 10 minutes",
    (
        'runtime_env={…, "env_vars": {"ATTEMPT": "2"}}   # any difference makes it another environment',
        "BAD_RUNTIME_ENV_CACHE_TTL_SECONDS=30 ray start …   # or keep failures for a shorter time, on every node",
    ),
    doc=_DEBUGGING,
)


def remedies(error: SetupError, tool: str, kept: bool) -> tuple[Remedy, ...]:
    """For this kind of failure; `kept`: somebody already got it from the agent's memory."""
    first = _first(error, tool)
    image = (IMAGE,) if error.kind in ("network", "build", "certificate", "no-tool") else ()
    return (*first, *image, *((KEPT,) if kept else ()))


def _first(error: SetupError, tool: str) -> tuple[Remedy, ...]:
    if error.kind == "no-package":
        return _package(error, tool)
    title, steps = _SIMPLE[error.kind]
    return (Remedy(title, steps, doc=_DEBUGGING),)


def _package(error: SetupError, tool: str) -> tuple[Remedy, ...]:
    wanted = error.requirement or "the package"
    name = wanted.partition("=")[0].rstrip("<>~! ") or wanted
    field = "uv" if "uv" in tool else "pip"
    if wanted == field == "uv":
        steps = ("RUN pip install uv   # in the Dockerfile of the cluster's image",)
        return (
            Remedy("Install uv on the nodes: Ray tried to fetch the tool itself", steps, doc=DOC),
        )
    if error.available not in ("", "none"):
        newest = error.available.rpartition(",")[2].strip()
        return (
            Remedy(
                f"Ask for a version of {name} that there is for this Python: {error.available}",
                (
                    paste.python(
                        'runtime_env={{{field}: ["{package:package}=={version:version}"]}}',
                        field=field,
                        package=name,
                        version=newest,
                    ),
                ),
                doc=DOC,
            ),
        )
    return (
        Remedy(
            f"Correct the name and version of {wanted}, or name the index that has it",
            (
                paste.shell(
                    "pip download --no-deps {requirement}   # on the node, with its Python and its index",
                    requirement=wanted,
                ),
                paste.python(
                    'runtime_env={{{field}: ["--index-url https://your.index/simple", {requirement}]}}',
                    field=field,
                    requirement=wanted,
                ),
            ),
            doc=DOC,
        ),
    )


_SIMPLE: dict[Kind, tuple[str, tuple[str, ...]]] = {
    "disk": (
        "Make room on the node's disk: environments lie in Ray's temporary directory",
        ("df -h /tmp/ray   # on the node", "ray start --temp-dir=/bigger/disk/ray …"),
    ),
    "certificate": (
        "Let the node trust the index's certificate",
        (
            'runtime_env={…, "env_vars": {"PIP_CERT": "/etc/ssl/certs/company-ca.pem"}}   # uv: SSL_CERT_FILE',
        ),
    ),
    "network": (
        "Let the node reach the server that was asked",
        (
            "curl -sSI https://pypi.org/simple/   # on the node; or the index or URL that you use",
            'runtime_env={…, "env_vars": {"HTTPS_PROXY": "http://proxy:3128"}}   # if it must go through a proxy',
        ),
    ),
    "untrusted": (
        "Use HTTPS for the index, or tell pip to trust the host: it was not asked at all",
        ('runtime_env={…, "env_vars": {"PIP_TRUSTED_HOST": "the.host"}}',),
    ),
    "conflict": (
        "Loosen the versions that contradict each other",
        (
            "uv pip compile requirements.txt   # names the conflict, and finds versions that fit together",
        ),
    ),
    "build": (
        "Install a wheel instead of building, or give the node what the build needs",
        (
            "pip wheel --no-deps PACKAGE   # once, on a machine with the compiler; then use the .whl",
            "apt-get install -y build-essential python3-dev   # on the node's image",
        ),
    ),
    "ray-version": (
        "Take ray out of the packages: a runtime environment must have the cluster's own version",
        ("pip install --dry-run …   # which of the packages pulls ray in?",),
    ),
    "no-tool": ("Install the tool that is missing on every node", ()),
    "upload": (
        "Make what is uploaded smaller, or put it where the nodes can fetch it",
        (
            'runtime_env={"working_dir": ".", "excludes": ["*.ckpt", "data/"]}',
            'runtime_env={"working_dir": "s3://bucket/project.zip"}',
        ),
    ),
    "other": (
        "Read the tool's whole output, and try its command by hand on that node",
        ("less logs/runtime_env_setup-*.log   # in the session's folder",),
    ),
}
