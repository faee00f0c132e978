"""Ray's gRPC messages come with raydoctor, for every version: none are imported from a folder of the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from fixtures import ray_messages
from raydoctor.act.cancel import owner
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.gcs import gcs, state
from raydoctor.observe.gcs.programs import gcs_messages, gcs_rows, gcs_wire
from raydoctor.observe.gcs.programs.gcs_messages import Messages
from raydoctor.observe.processes import discover
from tests.helpers.waiting import PATIENCE
from tests.live.test_discover import acting_as

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(name="installed", scope="module")
def _installed() -> Path:
    """The folder of the Ray beside raydoctor, which is not imported."""
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin
    return Path(spec.origin).parent


# ------------------------------------------------------------------ the same as Ray's


def test_the_shipped_messages_are_those_of_the_installed_ray(installed: Path) -> None:
    """Field by field. Where it fails: `python fixtures/ray_messages.py` writes them for a new version."""
    assert ray_messages.differences(installed) == []


def test_grpc_loads_without_asyncio_and_works_with_it_afterwards() -> None:
    """Coroutines are called as usual in a process that imported gRPC as the live commands do."""
    probe = (
        "import sys; from raydoctor.observe.gcs.programs.gcs_wire import load_grpc; load_grpc()\n"
        "assert not {'asyncio', 'grpc.aio', 'ssl'} & set(sys.modules)\n"
        "import asyncio, grpc\n"
        "async def call():\n"
        "    await grpc.aio.insecure_channel('127.0.0.1:1').unary_unary('/a/b')(b'', timeout=5)\n"
        "try: asyncio.run(call())\n"
        "except grpc.aio.AioRpcError as error: print(error.code().name)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "UNAVAILABLE\n"


def test_every_field_that_is_wanted_is_known() -> None:
    known = {(line.scope, line.declared.split()[-1]) for version in gcs_messages.versions() for line in gcs_messages.lines(version) if line.declared}  # fmt: skip
    wanted = {
        (f"ray.rpc.{message}", field)
        for message, fields in ray_messages._REPLIES.items()
        for field in fields.split()
    }
    assert wanted - known == set()


_SERVICES = ("/gcs_service.proto", "/core_worker.proto", "/autoscaler.proto")


@pytest.fixture(name="own", scope="module")
def _own(installed: Path) -> Callable[[str], Any]:
    """Ray's own message classes, by name: from its descriptors, without its code."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    files = {}
    for path in (installed / "core/generated").glob("*_pb2.py"):
        file = descriptor_pb2.FileDescriptorProto.FromString(ray_messages._serialized(path))
        files[file.name] = file

    def add(name: str) -> None:
        if name in files:
            file = files.pop(name)
            for each in file.dependency:
                add(each)
            pool.AddSerializedFile(file.SerializeToString())

    for name in [each for each in files if each.endswith(_SERVICES)]:
        add(name)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "GcsNodeInfo": lambda message, _: [gcs_rows.node(message), gcs_rows.resources(message, None)],
    "WorkerTableData": lambda message, _: [gcs_rows.worker(message), gcs_rows.worker_stats(message, None)],
    "ActorTableData": lambda message, _: gcs_rows.actor(message),
    "PlacementGroupTableData": lambda message, _: gcs_rows.placement_group(message),
    "JobTableData": lambda message, _: [gcs_rows.driver_job(message), gcs_rows.driver(message)],
    "TaskEvents": lambda message, of: [
        gcs_rows.task(message, of.rpc.TaskStatus),
        gcs_rows.took(message, of.rpc.TaskStatus),
        gcs_rows.is_waiting(message, of.rpc.TaskStatus),
        gcs_rows.is_finished(message, of.rpc.TaskStatus),
    ],
    "TaskInfoEntry": lambda message, _: gcs_rows.owned_task(message),
    "GetCoreWorkerStatsReply": lambda message, _: [
        gcs_rows.worker_stats(_empty(message), message),
        [gcs_rows.reference(each, message.core_worker_stats) for each in message.core_worker_stats.object_refs],
    ],
    "autoscaler.ClusterResourceState": lambda message, _: gcs_rows.demands(message),
}  # fmt: skip


def _empty(reply: Any) -> Any:
    """A worker, for what is read of its stats."""
    del reply
    return Messages().rpc.WorkerTableData()


def _fill(message: Any, depth: int = 4) -> Any:
    """Give every field a value of its own."""
    for field in message.DESCRIPTOR.fields:
        number = field.number + 1
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type
            held = getattr(message, field.name)
            key = _plain(entry.fields_by_name["key"], number)
            if entry.fields_by_name["value"].message_type is None:
                held[key] = _plain(entry.fields_by_name["value"], number)
        elif field.message_type is not None:
            if depth:
                held = getattr(message, field.name)
                _fill(held.add() if field.is_repeated else held, depth - 1)
                if not field.is_repeated:
                    held.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).append(_plain(field, number))
        else:
            setattr(message, field.name, _plain(field, number))
    return message


def _plain(field: Any, number: int) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.cpp_type == field.CPPTYPE_STRING:
        is_bytes = field.type == field.TYPE_BYTES
        return f"{field.name} {number}".encode() if is_bytes else f"{field.name} {number}"
    return field.cpp_type == field.CPPTYPE_BOOL or number


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_that_ray_s_own_messages_make(
    name: str, own: Callable[[str], Any], installed: Path
) -> None:
    """A field that raydoctor reads and does not ship would be missing in its row."""
    theirs = _fill(own(f"ray.rpc.{name}")())
    of = Messages(ray_messages.version_of(installed))
    package, _, message = name.rpartition(".")
    ours = getattr(of.autoscaler if package else of.rpc, message).FromString(
        theirs.SerializeToString()
    )
    assert ROWS[name](ours, of) == ROWS[name](theirs, of)


@pytest.mark.parametrize("version", ["2.9.3", "2.20.0", "2.40.0", "2.50.1", "2.60.0"])
def test_a_driver_s_exception_is_in_its_row_and_bounded(version: str) -> None:
    """The outermost and the innermost frames remain of a long one."""
    of = Messages().of_version(version)
    assert _number(of, "WorkerTableData", "worker_info") == 6
    worker = of.rpc.WorkerTableData()
    assert gcs_rows.worker(worker)["exception"] is None
    worker.worker_info["name"] = b"train.py"
    assert gcs_rows.worker(worker)["exception"] is None
    worker.worker_info["exception"] = b"\xff first" + b"x" * 100_000 + b"last"
    kept = gcs_rows.worker(worker)["exception"]
    assert (kept[:7], kept[-4:]) == ("\ufffd first", "last")
    assert len(kept) < 9_000


# ------------------------------------------------------------------ versions


def _number(of: Messages, message: str, field: str) -> int | None:
    known = getattr(of.rpc, message).DESCRIPTOR.fields_by_name
    return int(known[field].number) if field in known else None


@pytest.mark.parametrize(
    ("version", "running", "created", "pid", "cancel"),
    [
        ("2.8.1", 6, 1, 22, "RemoteCancelTask"),  # before the oldest one known: as that
        ("2.9.3", 6, 1, 22, "RemoteCancelTask"),
        ("2.35.0", 6, 1, 22, "RemoteCancelTask"),
        ("2.36.1", 6, 2, 22, "RemoteCancelTask"),
        ("2.38.0", 6, 2, 22, "RemoteCancelTask"),
        ("2.39.0", 8, 2, 22, "RemoteCancelTask"),
        ("2.49.2", 8, 2, 22, "RemoteCancelTask"),
        ("2.50.0", 8, 2, 17, "RemoteCancelTask"),
        ("2.52.1", 8, 2, 17, "CancelRemoteTask"),
        ("2.53.0", 8, 2, 17, "RequestOwnerToCancelTask"),
        ("3.0.0.dev0", 8, 2, 17, "RequestOwnerToCancelTask"),
        ("", 8, 2, 17, "RequestOwnerToCancelTask"),
    ],
)
def test_numbers_are_those_of_the_version(
    version: str, running: int, created: int, pid: int, cancel: str
) -> None:
    of = Messages().of_version(version)
    assert of.rpc.TaskStatus.Value("RUNNING") == running
    states = of.rpc.PlacementGroupTableData.DESCRIPTOR.fields_by_name["state"].enum_type
    assert states.values_by_name["CREATED"].number == created
    assert _number(of, "CoreWorkerStats", "pid") == pid
    calls = ("RequestOwnerToCancelTask", "CancelRemoteTask", "RemoteCancelTask")
    assert [name for name in calls if hasattr(of.rpc, f"{name}Request")] == [cancel]


TASKS = gcs_wire.TaskFilter(b"job", [b"task"], "train", "RUNNING", ["NIL"])


@pytest.mark.parametrize(
    ("version", "filters"),
    [
        ("2.9.3", {"job_id", "task_ids", "name", "exclude_driver"}),
        ("2.40.0", {"job_id", "task_ids", "name", "exclude_driver", "state"}),
        (
            "2.41.0",
            {"job_filters", "task_filters", "task_name_filters", "exclude_driver", "state_filters"},
        ),
    ],
)
def test_a_request_carries_the_fields_that_the_version_has(version: str, filters: set[str]) -> None:
    of = Messages(version)
    call = gcs_wire.task_events(of, TASKS, 7)
    assert call.path == "/ray.rpc.TaskInfoGcsService/GetTaskEvents"
    assert call.request.limit == 7
    assert {field.name for field, _ in call.request.filters.ListFields()} == filters
    assert gcs_wire.filters_states(of) == ("state_filters" in filters)
    whole = gcs_wire.call_of(of, "WorkerInfoGcsService", "GetAllWorkerInfo", filters={}, no="x")
    assert whole.request.SerializeToString() in (b"", b"\x12\x00")


def test_all_versions_load() -> None:
    for version in gcs_messages.versions():
        of = Messages(version)
        assert of.rpc.GetAllNodeInfoReply().SerializeToString() == b""
        assert of.autoscaler.GetClusterStatusReply().SerializeToString() == b""


def test_a_number_that_a_newer_ray_sends_is_shown_as_it_is() -> None:
    rpc = Messages().rpc
    actor = rpc.ActorTableData(actor_id=b"a", state=77)
    actor.death_cause.actor_died_error_context.reason = 99
    row = gcs_rows.actor(rpc.ActorTableData.FromString(actor.SerializeToString()))
    assert row["state"] == 77
    assert row["death_cause"]["actor_died_error_context"]["reason"] == 99
    event = rpc.TaskEvents(task_id=b"t")
    event.state_updates.state_ts_ns.update({8: 5_000_000, 55: 9_000_000})
    states = rpc.TaskStatus
    assert gcs_rows.task(event, states)["state"] == "RUNNING"


def test_the_times_of_a_task_in_each_version() -> None:
    """2.9 to 2.31 have a field for each state, 2.32 has a map, since 2.33 it has another name."""
    for version in ("2.9.3", "2.31.0", "2.32.0", "2.33.0", "2.60.0"):
        rpc = Messages(version).rpc
        event = rpc.TaskEvents(task_id=b"t")
        updates = event.state_updates
        if hasattr(updates, "running_ts"):
            updates.running_ts = 5_000_000
        else:
            times = getattr(updates, "state_ts" if version == "2.32.0" else "state_ts_ns")
            times[rpc.TaskStatus.Value("RUNNING")] = 5_000_000
        row = gcs_rows.task(event, rpc.TaskStatus)
        assert (row["state"], row["start_time_ms"]) == ("RUNNING", 5.0), version


# ------------------------------------------------------------------ over the wire


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[str]:
    """A GCS that answers these methods; its address."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            answer = answers.get(details.method.rpartition("/")[2])
            if answer is None:
                return None
            return grpc.unary_unary_rpc_method_handler(lambda request, context: answer)

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=(Handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def _gcs_of(version: str, stored: bytes | None = None) -> dict[str, bytes]:
    """What a GCS of this version answers: one placement group, which it has created."""
    rpc = Messages(version).rpc
    if stored is None:
        stored = json.dumps({"ray_version": version, "python_version": "3.11.7"}).encode()
    group = rpc.PlacementGroupTableData(placement_group_id=b"group", state="CREATED")
    reply = rpc.GetAllPlacementGroupReply(placement_group_table_data=[group])
    return {
        "InternalKVGet": rpc.InternalKVGetReply(value=stored).SerializeToString(),
        "GetAllNodeInfo": rpc.GetAllNodeInfoReply().SerializeToString(),
        "GetAllPlacementGroup": reply.SerializeToString(),
    }


@pytest.mark.parametrize("version", ["2.9.3", "2.40.0", "2.60.0"])
def test_a_gcs_is_understood_by_the_version_that_it_states(version: str) -> None:
    with serving(_gcs_of(version)) as address:
        child = gcs.Child()
        try:
            (received,) = child.ask(address, Access(), ["placement-groups"], 20.0)
        finally:
            child.end()
    assert child.about == {"ray_version": version, "python_version": "3.11.7"}
    assert [row["state"] for row in received.rows] == ["CREATED"]


def test_a_ray_that_is_newer_than_the_messages_is_a_gap() -> None:
    newest = gcs_messages.versions()[-1]
    major, minor = (int(part) for part in newest.split(".")[:2])
    newer = f"{major}.{minor + 1}.0"
    gaps = {}
    for version in (newest, newer):
        stored = json.dumps({"ray_version": version}).encode()
        with serving(_gcs_of(newest, stored)) as address:
            items = list(state.tables(Cluster(gcs_address=address), 10.0))
        gaps[version] = [
            item.why for item in items if isinstance(item, Gap) and "supports" in item.why
        ]
    assert gaps[newest] == []
    assert gaps[newer] == [
        f"the cluster runs Ray {newer}; raydoctor supports the messages of Ray up to {newest}"
    ]


@pytest.mark.parametrize("stored", [b"", b"[]", b"{", b'{"ray_version": 2}', b"[" * 100_000])
def test_a_version_that_is_missing_or_damaged_is_the_newest(stored: bytes) -> None:
    newest = gcs_messages.versions()[-1]
    with serving(_gcs_of(newest, stored)) as address:
        child = gcs.Child()
        try:
            (received,) = child.ask(address, Access(), ["placement-groups"], 20.0)
        finally:
            child.end()
    assert child.about == {}
    assert [row["state"] for row in received.rows] == ["CREATED"]


# ------------------------------------------------------------------ code of others


@pytest.fixture(name="planted")
def _planted(tmp_path: Path) -> Path:
    """A folder `ray` of another user; `ran` beside it appears when a module of it is imported."""
    generated = tmp_path / "ray" / "core" / "generated"
    generated.mkdir(parents=True)
    code = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    for name in ("gcs_service", "common", "core_worker", "autoscaler"):
        (generated / f"{name}_pb2.py").write_text(code)
    for folder in (tmp_path / "ray", generated.parent, generated):
        (folder / "__init__.py").write_text(code)
    for name in ("grpc", "json", "gcs_wire", "gcs_rows", "google"):
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


PROGRAMS = (gcs._PROGRAM, owner._PROGRAM)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_programs_import_nothing_from_the_folder_of_a_cluster(program: Path, planted: Path) -> None:
    """Neither where it is their argument, as it was once, nor where it is the working folder."""
    request = {"address": "127.0.0.1:1", "access": Access(), "timeout": 0.2, "tables": ["nodes"]}
    done = subprocess.run(
        [sys.executable, str(program), str(planted / "ray")],
        input=json.dumps(request).encode() + b"\n",
        capture_output=True,
        check=True,
        timeout=60,
        cwd=planted,
    )
    assert b"refused" in done.stdout
    assert not (planted / "ran").exists()


@linux
def test_nothing_is_imported_from_the_folder_that_a_daemon_names(planted: Path) -> None:
    session = planted / "session_2026-11-22_10-00-00_000001_7"
    arguments = [
        *("--host=127.0.0.1", "--port=1", f"--temp-dir={planted}", f"--log-dir={session}/logs"),
        *("--gcs-address=127.0.0.1:1", "--node-ip-address=127.0.0.1"),
    ]
    with acting_as("dashboard/dashboard.py", planted, arguments, {}):
        for cluster in discover.clusters():
            if cluster.session_dir == str(session):
                assert list(state.tables(cluster, 5.0))
    assert not (planted / "ran").exists()


def test_no_program_of_raydoctor_puts_a_folder_of_others_on_its_path() -> None:
    package = Path(gcs.__file__).parents[2]
    for path in package.rglob("programs/*.py"):
        assert "__path__" not in path.read_text(encoding="utf-8"), path


def test_asking_a_gcs_does_not_import_ray() -> None:
    code = (
        "import sys; from raydoctor.observe.watching import watching; "
        "from raydoctor.observe.gcs.programs.gcs_messages import Messages; Messages(); "
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'ray']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE, cwd=os.path.sep)
