"""Remedies for runtime environments that could not be set up."""

from __future__ import annotations

from raydoctor.model import paste
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.setup.errors import Kind, SetupError

DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html"
_DEBUGGING = f"{DOC}#debugging"

IMAGE = Remedy(
    "Build the packages into the image or environment of the nodes, and drop them from runtime_env",
    ("RUN pip install PACKAGE   # in the Dockerfile of the cluster image",),
    doc=DOC,
)
KEPT = (
    Remedy(
        "To retry immediately, change anything in the runtime environment: the agent caches a failure for 10 minutes",
        (
            'runtime_env={"env_vars": {"ATTEMPT": "2"}}   # plus your other entries. Any change makes it a new environment',
        ),
        doc=_DEBUGGING,
    ),
    Remedy(
        "Or cache failures for a shorter time",
        (
            "export BAD_RUNTIME_ENV_CACHE_TTL_SECONDS=30   # on every node, before ray start, or before your program if it starts Ray",
        ),
        risk="disruptive",
        doc=_DEBUGGING,
    ),
)


def remedies(error: SetupError, tool: str, kept: bool) -> tuple[Remedy, ...]:
    """Remedies for this kind of failure; `kept`: the agent already returned the failure that it keeps."""
    first = _first(error, tool)
    image = (IMAGE,) if error.kind in ("network", "build", "certificate", "no-tool") else ()
    return (*first, *image, *(KEPT if kept else ()))


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
        steps = ("RUN pip install uv   # in the Dockerfile of the cluster image",)
        return (
            Remedy(
                "Install uv on the nodes: Ray tried to download the tool itself", steps, doc=DOC
            ),
        )
    if error.available not in ("", "none"):
        newest = error.available.rpartition(",")[2].strip()
        return (
            Remedy(
                f"Request a version of {name} that exists for this Python: {error.available}",
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
            f"Correct the name and version of {wanted}, or set the index that has it",
            (
                paste.shell(
                    "pip download --no-deps {requirement}   # on the node, with the Python that Ray uses and the same index",
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
        "Free space on the node's disk: Ray stores environments in its temporary directory",
        (
            "df -h /tmp/ray   # on the node",
            "ray start --temp-dir=/bigger/disk/ray   # plus your other options",
            'ray.init(_temp_dir="/bigger/disk/ray")   # if the program starts Ray',
        ),
    ),
    "certificate": (
        "Make the node trust the index's certificate",
        (
            'runtime_env={"env_vars": {"PIP_CERT": "/etc/ssl/certs/company-ca.pem"}}   # plus your other entries, uv: SSL_CERT_FILE',
        ),
    ),
    "network": (
        "Make the package index or server reachable from the node",
        (
            "curl -sSI https://pypi.org/simple/   # on the node, with your own index or URL",
            'runtime_env={"env_vars": {"HTTPS_PROXY": "http://proxy:3128"}}   # plus your other entries, if the node needs a proxy',
        ),
    ),
    "untrusted": (
        "Use HTTPS for the index, or make pip trust the host, which it ignored",
        ('runtime_env={"env_vars": {"PIP_TRUSTED_HOST": "the.host"}}   # plus your other entries',),
    ),
    "conflict": (
        "Loosen the version requirements that conflict",
        ("uv pip compile requirements.txt   # shows the conflict, or finds versions that fit",),
    ),
    "build": (
        "Install a wheel instead of building, or install the build's dependencies on the node",
        (
            "pip wheel --no-deps PACKAGE   # once, on a machine with the compiler, then use the .whl",
            "apt-get install -y build-essential python3-dev   # in the image of the node",
        ),
    ),
    "ray-version": (
        "Remove ray from the packages: a runtime environment must use the cluster's version",
        ("pip install --dry-run PACKAGE   # shows which package requires ray",),
    ),
    "no-tool": ("Install the tool that is missing on every node", ()),
    "upload": (
        "Make the upload smaller, or put it where the nodes can fetch it",
        (
            'runtime_env={"working_dir": ".", "excludes": ["*.ckpt", "data/"]}',
            'runtime_env={"working_dir": "s3://bucket/project.zip"}',
        ),
    ),
    "not-in-init": (
        "Pass local directories in ray.init, which uploads them once for the whole job: tasks and actors accept only URIs",
        (
            'ray.init(runtime_env={"working_dir": "."})   # or py_modules; every task of the job gets it',
            '@ray.remote(runtime_env={"working_dir": "s3://bucket/project.zip"})   # one task or actor',
        ),
    ),
    "invalid": (
        "Correct the runtime_env that the program passes: Ray checks it before it starts anything",
        (
            "python -c 'import os; print(os.getcwd())'   # relative paths start here",
            'ray.init(runtime_env={"working_dir": "/an/existing/directory"})   # of the driver\'s machine, or a URI of a .zip',
        ),
    ),
    "other": (
        "Read the tool's whole output, and run its command by hand on that node",
        ("less /tmp/ray/session_latest/logs/runtime_env_setup-*.log",),
    ),
}
