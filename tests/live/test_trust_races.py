"""Files that another user replaces while raydoctor works: after a check, and before the file is used.

The victim is root. Mallory owns the folder, or may write into it as into a session of Ray. Where one moment
matters, the test replaces the file at that moment.
"""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raydoctor.act.attach import launch
from raydoctor.act.run import runs, supervise, task_events
from raydoctor.act.zombies import clean
from raydoctor.act.zombies.leftovers import SweepOptions
from raydoctor.capture import owners
from raydoctor.capture.open import open_capture
from raydoctor.cli import run
from raydoctor.cli._files import write_atomically
from raydoctor.diagnosis import engine
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import bundle
from raydoctor.observe.processes import proc, traces
from raydoctor.observe.processes.redact import Redactor
from raydoctor.observe.watching import logs
from raydoctor.render.json import render
from tests.helpers import hostile
from tests.helpers.hostile import MALLORY, OPEN_TO_ALL, Ground

pytestmark = pytest.mark.skipif(
    not proc.LINUX or os.geteuid() != 0, reason="plays several users: Linux, as root"
)
KEPT = '{"only": "root may read it"}'
SECRET = "what only root may read"
RECORD = f"[2026-11-21 10:00:00,000 E 1 1] (raylet) node_manager.cc:1: {SECRET}\n"
PUBLIC = "[2026-11-21 10:00:00,000 E 1 1] (raylet) node_manager.cc:1: what all may read\n"
TIMES = 150
SECONDS = 10.0


@pytest.fixture
def place() -> Iterator[Ground]:
    with hostile.ground() as found:
        (found.folder / "kept").write_text(KEPT)
        (found.folder / "record").write_text(RECORD)
        for name in ("kept", "record"):
            (found.folder / name).chmod(0o600)
        yield found


def theirs(path: Path) -> Path:
    os.lchown(path, MALLORY, MALLORY)
    return path


def theirs_to(link: Path, target: Path) -> None:
    link.symlink_to(target)
    theirs(link)


def folder_of_theirs(place: Ground) -> Path:
    path = place.folder / "theirs"
    path.mkdir(exist_ok=True)
    return theirs(path)


# ---------------------------------------------------------------- outputs


def to_report(folder: Path) -> None:
    write_atomically(str(folder / "out"), "a report")


def to_archive(folder: Path) -> None:
    bundle.write(str(folder / "out.tar"), bundle.Bundle({}, {"x": b"x"}, (), {}), Redactor())


def to_launch_json(folder: Path) -> None:
    launch.write(folder / "launch.json", {"name": "raydoctor"})


def to_driver_log(folder: Path) -> None:
    run._opened(str(folder / "out")).close()


@pytest.mark.parametrize("write", [to_report, to_archive, to_launch_json])
@pytest.mark.parametrize("step", ["chmod", "fchmod", "replace"])
def test_a_new_file_that_has_become_a_link_leads_to_no_file_of_root(
    place: Ground, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], step: str
) -> None:
    """Neither its content nor its mode: `chmod` of a name that has become a link makes a secret public."""
    folder = folder_of_theirs(place)
    usual = getattr(os, step)

    def exchanged(*args: Any, **given: Any) -> Any:
        for name in os.listdir(folder):
            (folder / name).unlink()
            (folder / name).symlink_to(place.folder / "kept")
        return usual(*args, **given)

    monkeypatch.setattr(os, step, exchanged)
    with suppress(RaydoctorError):
        write(folder)
    assert (place.folder / "kept").read_text() == KEPT
    assert stat.S_IMODE((place.folder / "kept").stat().st_mode) == 0o600


@pytest.mark.parametrize("write", [to_report, to_archive, to_launch_json, to_driver_log])
def test_a_name_that_has_become_a_link_leads_no_output_to_a_file_of_root(
    place: Ground, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    folder = folder_of_theirs(place)
    check = owners.output_path

    def checked(path: str) -> str:
        found = check(path)
        for name in ("out", "out.tar", "launch.json"):
            if not (folder / name).is_symlink():
                theirs_to(folder / name, place.folder / "kept")
        return found

    monkeypatch.setattr(owners, "output_path", checked)
    with suppress(RaydoctorError):
        write(folder)
    assert (place.folder / "kept").read_text() == KEPT


def test_a_folder_that_has_become_a_link_is_not_followed(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of_theirs(place)
    (folder / "deep").mkdir()
    check = owners.output_path

    def checked(path: str) -> str:
        found = check(path)
        (folder / "deep").rename(folder / "gone")
        (folder / "deep").symlink_to(place.folder)
        return found

    monkeypatch.setattr(owners, "output_path", checked)
    with pytest.raises(RaydoctorError, match="cannot write"):
        write_atomically(str(folder / "deep" / "kept"), "a report")
    assert (place.folder / "kept").read_text() == KEPT


def test_an_entry_of_vs_code_takes_nothing_from_a_file_of_root(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the configurations that only root may read would go into a file of Mallory's folder."""
    folder = folder_of_theirs(place)
    check = owners.output_path

    def checked(path: str) -> str:
        found = check(path)
        if not (folder / "launch.json").is_symlink():
            theirs_to(folder / "launch.json", place.folder / "kept")
        return found

    monkeypatch.setattr(owners, "output_path", checked)
    with pytest.raises(RaydoctorError, match="was not changed"):
        launch.write(folder / "launch.json", {"name": "raydoctor"})
    assert (folder / "launch.json").is_symlink()


def test_the_output_of_a_driver_is_read_where_it_was_written(place: Ground) -> None:
    folder = folder_of_theirs(place)
    with run._opened(str(folder / "out")) as stream:
        stream.write(b"of the driver")
        (folder / "out").unlink()
        (folder / "out").symlink_to(place.folder / "kept")
        assert Path(run._written(stream, str(folder / "out"))).read_text() == "of the driver"


# ---------------------------------------------------------------- logs


def a_link(log: Path, place: Ground) -> None:
    log.symlink_to(place.folder / "record")


def a_pipe(log: Path, place: Ground) -> None:
    os.mkfifo(log, 0o666)


def a_link_to_zeros(log: Path, place: Ground) -> None:
    log.symlink_to("/dev/zero")


def session_of(place: Ground, uid: int) -> Path:
    session = place.session(1, uid)
    (session / "logs" / "raylet.out").write_text(PUBLIC)
    return session


@pytest.mark.parametrize("uid", [MALLORY, 0], ids=["their session", "our session"])
@pytest.mark.parametrize("plant", [a_link, a_pipe, a_link_to_zeros])
def test_a_log_that_is_replaced_is_read_as_it_was(
    place: Ground, plant: Callable[[Path, Ground], None], uid: int
) -> None:
    """Ray leaves the folders of a session writable for all users."""
    session = session_of(place, uid)
    log = session / "logs" / "raylet.out"
    with open_capture(str(session)) as capture:
        log.rename(session / "logs" / "old")
        plant(log, place)
        for source, file in capture.files.items():
            assert stat.S_ISREG(os.stat(file).st_mode), source.path
        report = render(engine.run(capture))
    assert "what all may read" in report
    assert SECRET not in report


def test_a_log_that_is_exchanged_all_the_time_leads_root_nowhere(place: Ground) -> None:
    session = session_of(place, MALLORY)
    log, link = session / "logs" / "raylet.out", session / "link"
    theirs_to(link, place.folder / "record")
    with hostile.repeating(MALLORY, lambda: hostile.exchange(log, link)):
        for _ in range(TIMES):
            with open_capture(str(session)) as capture:
                texts = [Path(file).read_text() for file in capture.files.values()]
            assert SECRET not in "".join(texts)


@pytest.mark.parametrize("name", ["raylet.out", "output.txt", "logs.tar"])
def test_a_named_file_that_is_replaced_is_no_pipe_that_blocks(
    place: Ground, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder_of_theirs(place) / name
    file.write_text(PUBLIC)
    check = owners.is_shared

    def checked(folder: int, path: str = "") -> bool:
        file.unlink(missing_ok=True)
        os.mkfifo(file)
        return check(folder, path)

    monkeypatch.setattr(owners, "is_shared", checked)
    with pytest.raises(RaydoctorError, match="was replaced meanwhile"):
        open_capture(str(file))


def test_files_beyond_the_limit_of_descriptors_are_a_gap(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raydoctor.capture import open as opening

    session = session_of(place, MALLORY)
    (session / "logs" / f"worker-{'a' * 56}-01000000-5.out").write_text(PUBLIC)
    monkeypatch.setattr(opening, "_has_room", lambda held: held < 1)
    with open_capture(str(session)) as capture:
        assert [source.role for source in capture.files] == ["raylet-out"]
        assert [gap.why for gap in capture.gaps] == [
            "cannot be read: too many files that other users can replace"
        ]


def test_only_folders_that_others_can_change_cost_descriptors(place: Ground) -> None:
    session = session_of(place, 0)
    for path in (session, session / "logs", session.parent):
        path.chmod(0o755)
    with open_capture(str(session)) as capture:
        assert [*capture.files.values()] == [str(session / "logs" / "raylet.out")]
    session.parent.chmod(OPEN_TO_ALL)
    with open_capture(str(session)) as capture:
        assert all(file.startswith("/proc/") for file in capture.files.values())


def test_a_session_of_a_job_that_is_replaced_is_not_read(place: Ground) -> None:
    session = session_of(place, MALLORY)
    private = place.session(2, 0)
    (private / "logs" / "raylet.out").write_text(RECORD)
    session.rename(session.with_name("old"))
    theirs_to(session, private)
    with open_capture(str(session), owner=MALLORY) as capture:
        assert not capture.files
        assert [gap.why for gap in capture.gaps] == ["was replaced while it was read; not followed"]


WORKER, PID = "ab" * 28, 77


def a_dead_sessions_raylet(session: Path) -> str:
    os.mkfifo(session / "logs" / "raylet.2.out")
    return str(clean._had_node(str(session), "ef" * 28) or "")


def a_workers_log(session: Path) -> str:
    os.mkfifo(session / "logs" / f"python-core-worker-{WORKER}_{PID}.log")
    return traces.job_of_actor(str(session), WORKER, PID)


def a_deleted_output(session: Path) -> str:
    file = session / "logs" / f"worker-{WORKER}-01000000-{PID}.out"
    with (
        file.open("w") as out,
        subprocess.Popen(["sleep", "60"], stdout=out) as process,
    ):
        file.unlink()
        os.mkfifo(file)
        try:
            return traces.job_of_worker(process.pid)
        finally:
            process.kill()


def a_log_that_a_watch_reads(session: Path) -> str:
    os.mkfifo(session / "logs" / "raylet.2.out")
    return str(logs.Logs(str(session))._is_trouble("raylet.2.out", 0) or "")


@pytest.mark.parametrize(
    "read", [a_dead_sessions_raylet, a_workers_log, a_deleted_output, a_log_that_a_watch_reads]
)
def test_a_pipe_in_place_of_a_log_is_not_waited_for(
    place: Ground, read: Callable[[Path], str]
) -> None:
    replies: list[str] = []
    session = session_of(place, 0)
    thread = threading.Thread(target=lambda: replies.append(read(session)), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert replies == [""]


# ---------------------------------------------------------------- run


def driver(pid: int) -> supervise.Driver:
    made = SimpleNamespace(child=SimpleNamespace(pid=pid), tree={}, started_at=0.0, sessions={})
    return cast("supervise.Driver", made)


@pytest.mark.parametrize(
    ("of_session", "of_log", "is_found"),
    [(0, 0, True), (MALLORY, MALLORY, False), (MALLORY, 0, False), (0, MALLORY, False)],
)
def test_a_driver_has_no_session_that_another_user_planted(
    place: Ground, monkeypatch: pytest.MonkeyPatch, of_session: int, of_log: int, is_found: bool
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(place.folder))
    session = place.session(1, of_session)
    log = session / "logs" / f"python-core-driver-01000000{'f' * 48}_77.log"
    log.touch()
    os.chown(log, of_log, of_log)
    made = driver(77)
    supervise.Driver.find_sessions(made)
    assert [*made.sessions] == ([str(session)] if is_found else [])
    assert bool(supervise.Driver.jobs(made, str(session))) is (of_log == 0)


def events_of(place: Ground) -> Path:
    folder = place.session(1, 0) / "logs" / "export_events"
    folder.mkdir()
    folder.chmod(OPEN_TO_ALL)
    (folder / "event_EXPORT_TASK_1.log").write_bytes(b"x" * 100)
    return folder


def test_events_that_are_too_many_are_emptied(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = events_of(place)
    monkeypatch.setattr(task_events, "MOST", 99)
    task_events.limit([str(folder.parents[1])], 0.0)
    assert (folder / "event_EXPORT_TASK_1.log").stat().st_size == 0


def another_name(folder: Path, place: Ground) -> None:
    (folder / "event_EXPORT_TASK_2.log").hardlink_to(place.folder / "kept")


def a_folder_elsewhere(folder: Path, place: Ground) -> None:
    (place.folder / "event_EXPORT_TASK_2.log").hardlink_to(place.folder / "kept")
    folder.rename(folder.with_name("old"))
    folder.symlink_to(place.folder)


@pytest.mark.parametrize("plant", [another_name, a_folder_elsewhere])
def test_no_other_file_is_emptied_as_an_event(
    place: Ground, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Ground], None]
) -> None:
    folder = events_of(place)
    plant(folder, place)
    monkeypatch.setattr(task_events, "MOST", 1)
    task_events.limit([str(folder.parents[1])], 0.0)
    assert (place.folder / "kept").read_text() == KEPT


def test_a_pipe_among_the_events_is_not_waited_for(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = events_of(place)
    listed: Any = task_events._opened

    def opened(handle: int, name: str, flags: int) -> Any:
        (folder / name).unlink()
        os.mkfifo(folder / name)
        return listed(handle, name, flags)

    monkeypatch.setattr(task_events, "_opened", opened)
    assert not task_events.with_failures(str(folder.parents[1]), 0.0, ["01000000"])


# ---------------------------------------------------------------- the state folder


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_no_state_is_kept_where_others_can_replace_it(
    place: Ground, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """`HOME=/tmp` in a container: the folder below it may be made by anyone."""
    shared = place.folder / "tmp"
    shared.mkdir()
    shared.chmod(OPEN_TO_ALL | stat.S_ISVTX)
    for each in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(variable, str(shared))
    assert not owners.state_folder().startswith(str(shared))
    (shared / "own").mkdir()
    monkeypatch.setenv(variable, str(shared / "own"))
    assert owners.state_folder().startswith(str(shared / "own"))


def test_the_output_of_a_driver_is_not_kept_where_others_can_replace_it(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of_theirs(place)
    folder.chmod(OPEN_TO_ALL)
    monkeypatch.setattr(owners, "state_folder", lambda: str(folder))
    log = runs.new_log()
    try:
        assert not log.startswith(str(folder))
    finally:
        runs.forget(log)


# ---------------------------------------------------------------- zombies --clean


def a_capture(folder: Path, number: int = 1) -> Path:
    """A session's folder that root keeps, unchanged for a day."""
    session = folder / f"session_2026-11-20_10-00-00_000000_{number}"
    (session / "logs").mkdir(parents=True)
    (session / "logs" / "raylet.out").write_text("kept\n")
    for each in (*session.rglob("*"), session):
        os.utime(each, (1.0, time.time() - 86_400))
    return session


def found_by_clean(folder: Path) -> list[clean.Stale]:
    return [each for each in clean.find(SweepOptions()) if str(folder) in each.path]


def test_a_process_elsewhere_shows_no_folder_of_ours_to_clean(place: Ground) -> None:
    """In a mount namespace of its own, the path of a log it has open may be that of any folder of ours."""
    capture = a_capture(place.folder / "captures")
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            libc = ctypes.CDLL(None)
            libc.unshare(0x00020000)  # CLONE_NEWNS
            libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None)  # private, with all below
            libc.mount(b"none", str(capture.parent).encode(), b"tmpfs", 0, b"mode=777")
            hostile.become(MALLORY)
            logs = capture.with_name(f"{capture.name}2") / "logs"
            logs.mkdir(parents=True)
            flags = os.O_CREAT | os.O_WRONLY
            os.open(logs / f"python-core-worker-{WORKER}_{os.getpid()}.log", flags)
            os.write(writing, b"x")
            time.sleep(60)
        os._exit(1)
    os.close(writing)
    place.pids.append(pid)
    assert os.read(reading, 1)
    assert found_by_clean(place.folder) == []


def test_a_link_of_another_user_leads_to_no_folder_to_clean(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/tmp/ray` may be made by any user before Ray is."""
    capture = a_capture(place.folder / "captures")
    monkeypatch.setenv("RAY_TMPDIR", str(place.folder))
    theirs_to(place.folder / "ray", capture.parent)
    (planned,) = found_by_clean(place.folder)
    assert "is a link of" in planned.reason
    assert "is a link of" in clean._problem_of(planned)
    assert (capture / "logs" / "raylet.out").read_text() == "kept\n"


@pytest.mark.parametrize("is_file", [False, True])
def test_what_takes_the_name_of_a_dead_session_is_kept(place: Ground, is_file: bool) -> None:
    """Ray makes `/tmp/ray` writable for all users: one can give a living session a dead one's name."""
    dead = a_capture(place.folder / "ray")
    planned = clean.Stale(str(dead), "session", 1, 86_400.0)
    dead.rename(dead.with_name("old"))
    living = a_capture(place.folder / "ray", 2)
    (living / "logs" / "gcs_server.out").write_text("alive\n")
    if is_file:
        theirs_to(dead, living)
    else:
        living.rename(dead)
    assert clean._problem_of(planned)
    assert (dead / "logs" / "gcs_server.out").read_text() == "alive\n"


def test_what_is_exchanged_while_a_session_is_removed_is_kept(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = a_capture(place.folder / "ray")
    living = a_capture(place.folder / "ray", 2)
    (living / "logs" / "gcs_server.out").write_text("alive\n")
    listed = os.listdir

    def exchanged(folder: Any) -> list[str]:
        if isinstance(folder, int) and living.exists():
            dead.rename(dead.with_name("old"))
            living.rename(dead)
        return listed(folder)

    monkeypatch.setattr(clean.os, "listdir", exchanged)
    assert clean._problem_of(clean.Stale(str(dead), "session", 1, 86_400.0))
    assert (dead / "logs" / "gcs_server.out").read_text() == "alive\n"
