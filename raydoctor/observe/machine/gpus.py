"""NVIDIA GPUs and the processes that hold their memory, from `nvidia-smi`: tables `gpus`, `gpu-processes`.

Its CSV has one line for each, with columns in the requested order; sizes are in MiB; unknown values are
`[N/A]` or `[Not Supported]`. In a container it may list no processes, or the host's pids.
"""

from __future__ import annotations

import csv
import glob
import shutil
from collections.abc import Iterator
from typing import Any

from raydoctor.model.values import Gap
from raydoctor.observe.collector import child
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import command_line

_TIMEOUT = 4.0
"""It takes a second if no process keeps the driver loaded."""
_MIB = 1 << 20
_TITLE = 200
_WHAT = "GPUs"
_GPUS = ("index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu")
_PROCESSES = ("pid", "gpu_uuid", "used_memory", "process_name")
_HINT = "nvidia-smi   # also in the container: is the driver loaded, and is the device passed in?"


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """Both tables; nothing on a machine without a GPU."""
    del cluster
    program = shutil.which("nvidia-smi")
    has_device = bool(glob.glob("/dev/nvidia[0-9]*"))
    if program is None:
        if has_device:
            yield Gap(
                _WHAT, "this machine has GPUs, but nvidia-smi is not on PATH", _HINT, optional=True
            )
        return
    printed = child.output(_query(program, "gpu", _GPUS), _TIMEOUT)
    if printed.problem:
        # Images with the driver's tools also run on machines without a GPU.
        if has_device:
            yield Gap(_WHAT, f"nvidia-smi: {printed.problem}", _HINT, optional=True)
        return
    gpus = list(_rows(printed.text, _GPUS))
    yield table("gpus", (_gpu(row) for row in gpus), source="nvidia-smi")
    indices = {row["uuid"]: _whole(row["index"]) for row in gpus}
    printed = child.output(_query(program, "compute-apps", _PROCESSES), _TIMEOUT)
    if printed.problem:
        yield Gap("processes on GPUs", f"nvidia-smi: {printed.problem}", _HINT, optional=True)
        return
    held = (_process(row, indices) for row in _rows(printed.text, _PROCESSES))
    yield table("gpu-processes", held, source="nvidia-smi")


def _query(program: str, what: str, names: tuple[str, ...]) -> list[str]:
    return [program, f"--query-{what}={','.join(names)}", "--format=csv,noheader,nounits"]


def _rows(printed: str, names: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows of the CSV; the last column (a process's name) may contain commas. Short lines are skipped."""
    for words in csv.reader(printed.splitlines(), skipinitialspace=True, quoting=csv.QUOTE_NONE):
        if len(words) >= len(names):
            last = len(names) - 1
            yield dict(zip(names, [*words[:last], ", ".join(words[last:])], strict=True))


def _gpu(row: dict[str, str]) -> dict[str, Any]:
    return {
        "index": _whole(row["index"]),
        "uuid": row["uuid"],
        "name": row["name"],
        "memory_total": _mebibytes(row["memory.total"]),
        "memory_used": _mebibytes(row["memory.used"]),
        "utilization": _whole(row["utilization.gpu"]),
    }


def _process(row: dict[str, str], indices: dict[str, int | None]) -> dict[str, Any]:
    pid = _whole(row["pid"])
    return {
        "pid": pid,
        "gpu": indices.get(row["gpu_uuid"]),
        "memory": _mebibytes(row["used_memory"]),
        "title": _title(pid, row["process_name"])[:_TITLE],
    }


def _title(pid: int | None, name: str) -> str:
    """The whole command if this pid runs that program here; the pid may be the host's."""
    command = proc.command(pid) if pid is not None else ()
    is_same = bool(command) and command[0].rpartition("/")[2] == name.rpartition("/")[2]
    return command_line(pid) if is_same and pid is not None else name


def _whole(word: str) -> int | None:
    return int(word) if word.strip().isdigit() else None


def _mebibytes(word: str) -> int | None:
    number = _whole(word)
    return None if number is None else number * _MIB
