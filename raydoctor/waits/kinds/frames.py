"""The owner of each frame of a stack, and the role of each thread of a worker.

A py-spy sample records the owner of a frame (`Frame.whose`). A text dump does not: there the file name
decides. Ray's own frames are those of Ray 2.9.3 to 2.60.0: `Worker.main_loop` runs tasks and methods, a
thread of C++ runs `actor_method_executor` of an actor with several threads, `AsyncIO Thread: …` has its
event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from raydoctor.cluster.samples import SampledFrame, SampledThread
from raydoctor.model.patterns import pattern

EVENT_LOOP = "AsyncIO Thread"
"""The name that Ray gives the threads of an async actor's coroutines."""

_PYTHON_FILE = pattern(r"\.pyx?$|^<|ipython|ipykernel_")
_INSTALLED = pattern(r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+(?:\.zip)?)/")
_PLUMBING = pattern(
    r"^ray/(?:_private/|actor\.py|remote_function\.py|util/(?:(?:tracing|client)/|(?:rpdb|debugpy)\.py)|_raylet|includes/)"
    r"|^(?:debugpy|pydevd|_pydev)"
)
"""Frames around a user's function: Ray's core, but not its libraries (`ray/data`), and debuggers."""
_STANDARD = frozenset({
    "_pydatetime", "_pydecimal", "_weakrefset", "abc", "asyncio", "base64", "bdb", "bz2", "cmd", "codecs",
    "collections", "concurrent", "configparser", "contextlib", "contextvars", "copy", "copyreg", "csv",
    "ctypes", "dataclasses", "datetime", "decimal", "dis", "email", "encodings", "enum", "fileinput",
    "fractions", "functools", "genericpath", "getpass", "glob", "gzip", "hashlib", "heapq", "hmac",
    "html", "http", "imaplib", "importlib", "inspect", "io", "ipaddress", "json", "linecache", "locale",
    "logging", "lzma", "multiprocessing", "ntpath", "optparse", "os", "pathlib", "pdb", "pickle",
    "pkgutil", "posixpath", "pprint", "pty", "queue", "random", "re", "reprlib", "runpy", "sched",
    "selectors", "shelve", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3",
    "sre_compile", "sre_parse", "ssl", "statistics", "string", "subprocess", "sysconfig", "tarfile",
    "telnetlib", "tempfile", "textwrap", "threading", "tokenize", "trace", "traceback", "types", "typing",
    "unittest", "urllib", "uuid", "warnings", "weakref", "webbrowser", "wsgiref", "xml", "xmlrpc",
    "zipfile", "zipimport", "zoneinfo",
})  # fmt: skip
"""Modules of the standard library that appear on stacks (CPython 3.10 to 3.13)."""
_LIBRARIES = frozenset({
    "ray", "torch", "torchvision", "torchaudio", "tensorflow", "jax", "jaxlib", "flax", "keras", "numpy",
    "pandas", "pyarrow", "polars", "dask", "scipy", "sklearn", "xgboost", "lightgbm", "transformers",
    "datasets", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "vllm",
    "sentence_transformers", "requests", "urllib3", "httpx", "httpcore", "h11", "h2", "anyio", "aiohttp",
    "websockets", "grpc", "google", "boto3", "botocore", "s3transfer", "s3fs", "gcsfs", "adlfs", "fsspec",
    "azure", "paramiko", "psycopg", "psycopg2", "sqlalchemy", "pymysql", "MySQLdb", "mysql", "redis",
    "kafka", "pymongo", "pika", "elasticsearch", "cassandra", "clickhouse_driver", "snowflake", "joblib",
    "loky", "tqdm", "filelock", "portalocker", "tenacity", "fastapi", "starlette", "uvicorn", "uvloop",
    "pydantic", "click", "cloudpickle", "psutil", "PIL", "cv2", "horovod", "mpi4py", "cupy",
    "cupy_backends", "cupyx", "numba", "debugpy", "pydevd", "_pydevd_bundle", "_pydevd_frame_eval",
    "_pydev_bundle", "pexpect", "docker", "kubernetes", "wandb", "mlflow", "gevent", "eventlet", "celery",
    "opentelemetry",
})  # fmt: skip
"""Packages whose frames are not the user's, for samples without the owner of a frame."""


def is_native(frame: SampledFrame) -> bool:
    """A function of C or C++, in a library or the interpreter."""
    return frame.whose == "native" if frame.whose else not _PYTHON_FILE.search(frame.file)


def short(frame: SampledFrame) -> str:
    """Its file as py-spy shortens it, also where a dump has the whole path."""
    return _INSTALLED.sub("", frame.file)


def shape(frame: SampledFrame) -> str:
    """`Condition.wait (threading.py)`: what the patterns of `catalog.py` are matched against."""
    return f"{frame.function} ({short(frame)})"


def python(thread: SampledThread) -> tuple[SampledFrame, ...]:
    """Its frames of Python, innermost first."""
    return tuple(frame for frame in thread.frames if not is_native(frame))


def natives(thread: SampledThread) -> tuple[SampledFrame, ...]:
    """The native frames on top of those of Python: the call that Python is in."""
    frames = thread.frames
    count = next((at for at, frame in enumerate(frames) if not is_native(frame)), len(frames))
    return frames[:count]


def is_plumbing(frame: SampledFrame) -> bool:
    """Whether it is a frame of Ray, or of a debugger, around a user's function."""
    return bool(_PLUMBING.match(short(frame)))


def whose(frame: SampledFrame) -> str:
    """`user`, `library`, `python` or `ray`."""
    if frame.whose:
        return frame.whose
    name = short(frame)
    top = name.partition("/")[0].removesuffix(".py")
    if name.startswith("<frozen") or (not name.startswith("/") and top in _STANDARD):
        return "python"
    if name.startswith("ray/"):
        return "ray"
    return "library" if not name.startswith("/") and top in _LIBRARIES else "user"


def user_frame(frames: Sequence[SampledFrame]) -> SampledFrame | None:
    """The innermost frame of the user's code, else the outermost frame of a library."""
    plain = [frame for frame in frames if not is_native(frame) and not is_plumbing(frame)]
    own = next((frame for frame in plain if whose(frame) == "user"), None)
    if own is not None:
        return own
    libraries = [frame for frame in plain if whose(frame) in ("library", "ray")]
    return libraries[-1] if libraries else None


def inner(thread: SampledThread) -> tuple[SampledFrame, ...]:
    """The frames of Python above the user's frame, or above the frames of Ray around it."""
    frames = python(thread)
    user = user_frame(frames)
    if user is not None:
        return frames[: frames.index(user)]
    is_called = [at for at, frame in enumerate(frames) if shape(frame) in _BOTTOMS]
    return frames[: is_called[0]] if is_called else frames


_BOTTOMS = frozenset(
    {
        "Worker.main_loop (ray/_private/worker.py)",
        "main_loop (ray/_private/worker.py)",
        "Thread._bootstrap_inner (threading.py)",
        "_bootstrap_inner (threading.py)",
        "Handle._run (asyncio/events.py)",
        "_run (asyncio/events.py)",
        "_WorkItem.run (concurrent/futures/thread.py)",
        "run (concurrent/futures/thread.py)",
    }
)
"""Frames that call another's function; Python 3.10 shows methods without their class."""


def is_main_loop(frame: SampledFrame) -> bool:
    """Where a worker waits for tasks, and runs them."""
    return frame.function.endswith("main_loop") and short(frame) == "ray/_private/worker.py"


def is_event_loop(thread: SampledThread) -> bool:
    """Whether it is the thread of an async actor's coroutines."""
    return thread.name.startswith(EVENT_LOOP)


def is_own_loop(thread: SampledThread) -> bool:
    """Whether a thread runs an event loop of its own, as those of Ray Serve do for their users' code."""
    return any(_runs_loop(frame) for frame in python(thread))


def _runs_loop(frame: SampledFrame) -> bool:
    """asyncio's own loop, or Ray Serve's frame around a loop of uvloop, which has no frames of Python."""
    if frame.function.endswith("_run_user_code_event_loop"):
        return short(frame) == "ray/serve/_private/replica.py"
    return frame.function.endswith("run_forever") and short(frame) == "asyncio/base_events.py"


def is_resting(thread: SampledThread) -> bool:
    """Whether an event loop is idle: its stack has frames of asyncio only."""
    for frame in python(thread):
        if _runs_loop(frame):
            return True
        if not _is_asyncio(frame):
            return False
    return True


def _is_asyncio(frame: SampledFrame) -> bool:
    name = short(frame)
    if name == "asyncio/events.py":
        return not frame.function.endswith("_run")
    return name.startswith(("selectors.py", "asyncio/", "threading.py", "uvloop"))


def is_started_by_python(thread: SampledThread) -> bool:
    """Whether it is a `threading.Thread`, not the main thread and none that Ray's C++ code created."""
    frames = python(thread)
    return bool(frames) and shape(frames[-1]).endswith("_bootstrap (threading.py)")


def is_pool_work(thread: SampledThread) -> bool:
    """A thread of a pool that runs a submitted function (`asyncio.to_thread`, `run_in_executor`)."""
    return any(
        frame.function.endswith("run") and short(frame).startswith(_POOLS)
        for frame in python(thread)
    )


def is_process_pool(thread: SampledThread) -> bool:
    """The thread of a `ProcessPoolExecutor` that receives the results of its processes."""
    return any(short(frame) == "concurrent/futures/process.py" for frame in python(thread))


_POOLS = ("concurrent/futures/thread.py", "anyio/_backends/")


def is_training(thread: SampledThread) -> bool:
    """A thread of Ray Train that runs its user's loop (`ray/train/v2` of 2.60; before, a `RunnerThread`)."""
    return any(
        frame.function.rpartition(".")[2] == function and short(frame).endswith(file)
        for frame in python(thread)
        for function, file in _TRAINERS
    )


_TRAINERS = (
    ("_run_target", "ray/train/v2/_internal/execution/worker_group/thread_runner.py"),
    ("run", "ray/air/_internal/util.py"),
)


def is_starting(thread: SampledThread) -> bool:
    """Whether it is a worker's main thread on its way to its main loop."""
    frames = python(thread)
    is_worker = any(short(frame).endswith("workers/default_worker.py") for frame in frames)
    return is_worker and not any(is_main_loop(frame) for frame in frames)


def is_bare_target(thread: SampledThread) -> bool:
    """A `threading.Thread`, or work of a pool, whose function is native: it has no frame on the stack."""
    frames = python(thread)
    return bool(frames) and shape(frames[0]) in _BARE


_BARE = frozenset(
    {
        "Thread.run (threading.py)",
        "run (threading.py)",
        "_WorkItem.run (concurrent/futures/thread.py)",
        "run (concurrent/futures/thread.py)",
    }
)


def has_classes(thread: SampledThread) -> bool:
    """Whether the stack shows methods with their class, as from Python 3.11 on."""
    return any("." in frame.function.replace("<locals>.", "") for frame in python(thread))
