"""Files that another user prepares for `collect --slurm`, for the output kept by `run`, and for `--session`.

The victim is root, who may read everything: what Mallory names must not lead there.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydoctor.capture import session
from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import slurm
from raydoctor.observe.gathered import Gathered
from raydoctor.observe.processes import driver_output, proc
from raydoctor.observe.processes.redact import Redactor
from raydoctor.render.json import render
from tests.helpers import hostile
from tests.helpers.hostile import ALICE, MALLORY, Ground
from tests.helpers.waiting import clock

pytestmark = pytest.mark.skipif(
    not proc.LINUX or os.geteuid() != 0, reason="plays several users: Linux, as root"
)
SECRET = "what only root may read"
RECORD = f"[2026-11-21 10:00:00,000 E 1 1] (raylet) node_manager.cc:1: {SECRET}\n"


@pytest.fixture
def place() -> Iterator[Ground]:
    with hostile.ground() as found:
        (found.folder / "secret").write_text(RECORD)
        (found.folder / "secret").chmod(0o600)
        yield found


def of(uid: int, path: Path) -> Path:
    os.lchown(path, uid, uid)
    return path


def a_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def a_chain_of_links(path: Path, secret: Path) -> None:
    path.with_name("hop").symlink_to(secret)
    path.symlink_to("hop")


def a_pipe(path: Path, secret: Path) -> None:
    os.mkfifo(path, 0o666)


def a_link_to_zeros(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_our_memory(path: Path, secret: Path) -> None:
    path.symlink_to("/proc/self/environ")


def a_folder(path: Path, secret: Path) -> None:
    path.mkdir()


PLANTED = (a_link, a_chain_of_links, a_pipe, a_link_to_zeros, a_link_to_our_memory, a_folder)
Plant = Callable[[Path, Path], None]


def gathered(outputs: list[slurm._Output]) -> tuple[str, list[str]]:
    """All text that root's archive of a job would have, and what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        into = Gathered("job 1", Path(folder), Redactor())
        (into.folder / "capture").mkdir()
        slurm._read(outputs, into, 5.0)
        texts = [p.read_text(errors="replace") for p in into.folder.rglob("*") if p.is_file()]
        for each in into.sessions:
            try:
                with open_capture(each) as capture:
                    texts.append(render(engine.run(capture)))
                    texts += [
                        Path(file).read_text(errors="replace") for file in capture.files.values()
                    ]
            except RaydoctorError:
                pass
        return "\n".join(texts), [gap.what for gap in into.gaps]


@pytest.mark.parametrize("plant", PLANTED)
def test_the_output_of_a_job_leads_root_nowhere(place: Ground, plant: Plant) -> None:
    output = place.folder / "slurm-1.out"
    plant(output, place.folder / "secret")
    of(MALLORY, output)
    began = clock()
    reply, missing = gathered([slurm._Output(str(output), "slurm-1.out", MALLORY)])
    assert SECRET not in reply
    assert "PATH=" not in reply
    assert str(output) in missing
    assert clock() - began < 5


@pytest.mark.parametrize("owner", [ALICE, 0])
def test_a_job_of_mallory_names_a_file_of_another_user(place: Ground, owner: int) -> None:
    output = place.folder / "slurm-1.out"
    output.write_text(RECORD)
    of(owner, output)
    reply, missing = gathered([slurm._Output(str(output), "slurm-1.out", MALLORY)])
    assert SECRET not in reply
    assert missing[0] == str(output)


@pytest.mark.parametrize("plant", PLANTED)
def test_the_session_that_an_output_names_leads_root_nowhere(place: Ground, plant: Plant) -> None:
    theirs = place.session(1, MALLORY)
    log = theirs / "logs" / "raylet.out"
    log.unlink()
    plant(log, place.folder / "secret")
    of(MALLORY, log)
    output = place.folder / "slurm-1.out"
    output.write_text(f"View the logs in {theirs}\n")
    of(MALLORY, output)
    reply, _ = gathered([slurm._Output(str(output), "slurm-1.out", MALLORY)])
    assert f"View the logs in {theirs}" in reply
    assert SECRET not in reply
    assert "PATH=" not in reply


def test_the_session_of_the_job_s_user_is_read(place: Ground) -> None:
    """The control: the same without the intruder's part."""
    theirs = place.session(1, MALLORY)
    (theirs / "logs" / "raylet.out").write_text(RECORD)
    output = place.folder / "slurm-1.out"
    output.write_text(f"View the logs in {theirs}\n")
    of(MALLORY, output)
    reply, _ = gathered([slurm._Output(str(output), "slurm-1.out", MALLORY)])
    assert SECRET in reply


@pytest.mark.parametrize("owner", [ALICE, 0])
def test_the_session_that_an_output_names_is_its_user_s_own(place: Ground, owner: int) -> None:
    folder = place.session(1, owner)
    (folder / "logs" / "raylet.out").write_text(RECORD)
    output = place.folder / "slurm-1.out"
    output.write_text(f"View the logs in {folder}\n")
    of(MALLORY, output)
    reply, missing = gathered([slurm._Output(str(output), "slurm-1.out", MALLORY)])
    assert SECRET not in reply
    assert "Ray's logs" in missing


# ------------------------------------------------------------------ what `run` kept


def kept(folder: Path, about: int, log: int) -> Path:
    """A run of the session `folder / "s"`; its files belong to these users."""
    run = folder / "runs" / "1"
    run.mkdir(parents=True)
    reply = {"sessions": [str(folder / "s")], "pids": [7]}
    (run / driver_output.ABOUT).write_text(json.dumps(reply))
    (run / "driver.log").write_text(RECORD)
    of(about, run / driver_output.ABOUT)
    of(log, run / "driver.log")
    return run


@pytest.mark.parametrize(("about", "log"), [(MALLORY, MALLORY), (MALLORY, 0), (0, MALLORY)])
def test_kept_output_of_another_user_is_not_read(
    place: Ground, about: int, log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_output, "runs_folder", lambda: str(place.folder / "runs"))
    kept(place.folder, about, log)
    found = driver_output._kept(str(place.folder / "s"), {7})
    assert not found or driver_output._status_of(found) is None


@pytest.mark.parametrize("plant", PLANTED)
def test_kept_output_that_is_no_file_is_not_read(
    place: Ground, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_output, "runs_folder", lambda: str(place.folder / "runs"))
    run = kept(place.folder, 0, 0)
    (run / "driver.log").unlink()
    plant(run / "driver.log", place.folder / "secret")
    of(MALLORY, run / "driver.log")
    assert driver_output._status_of(driver_output._kept(str(place.folder / "s"), {7})) is None


def test_kept_output_of_our_own_is_read(place: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the intruder's part, it is found."""
    monkeypatch.setattr(driver_output, "runs_folder", lambda: str(place.folder / "runs"))
    kept(place.folder, 0, 0)
    assert driver_output._status_of(driver_output._kept(str(place.folder / "s"), {7})) is not None


# ------------------------------------------------------------------ --session


def test_a_named_session_of_another_user_is_shown_as_theirs(place: Ground) -> None:
    theirs = place.session(1, MALLORY)
    (theirs / "logs" / "raylet.out").write_text(RECORD)
    with open_capture(str(theirs.parent), session=theirs.name) as capture:
        assert any(f"belongs to user {MALLORY}" in note for note in capture.notes)


FORGED = "[2026-11-21 10:00:00,000 C 1 1] (raylet) a.cc:1:  Check failed: forged by Mallory\n"
WORKER = "a1" * 28


@pytest.mark.parametrize(
    "name",
    [
        "raylet.out", "gcs_server.out.1", f"worker-{WORKER}-01000000-5.err", "events/event_RAYLET.log",
        "old/gcs_server.out", "dmesg.txt", "debug_state.txt", "job-driver-raysubmit_x1.log",
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", ["session", "logs"])
def test_what_another_user_writes_into_a_session_is_not_rays_log(
    place: Ground, name: str, at: str
) -> None:
    """Ray lets all users create files there, and files of Ray's own processes have the session's owner."""
    ours = place.session(1, ALICE)
    log = ours / "logs" / name
    if log.parent != ours / "logs":
        log.parent.mkdir()
        of(MALLORY, log.parent)
    log.unlink(missing_ok=True)
    log.write_text(FORGED)
    of(MALLORY, log)
    with open_capture(str(ours if at == "session" else ours / "logs")) as capture:
        report = engine.run(capture)
        assert not any(source.path.endswith(name) for source in capture.files)
    whys = [gap.why for gap in report.gaps if gap.what.endswith(name)]
    why = f"belongs to user {MALLORY}, the session to user {ALICE}: not written by Ray; not read"
    assert why in whys
    assert "forged" not in render(report)


def test_the_log_of_another_users_driver_is_read_and_its_owner_named(place: Ground) -> None:
    ours = place.session(1, ALICE)
    for name in (f"python-core-driver-01000000{'f' * 48}_7.log", "events/event_CORE_WORKER_7.log"):
        log = ours / "logs" / name
        log.parent.mkdir(exist_ok=True)
        log.write_text(FORGED)
        of(MALLORY, log)
    with open_capture(str(ours)) as capture:
        assert {"core-driver", "event"} <= {source.role for source in capture.files}
        assert len([note for note in capture.notes if f"belongs to user {MALLORY}" in note]) == 1


def test_files_of_several_users_in_a_copied_folder_are_read(place: Ground) -> None:
    """Colleagues put the logs of their nodes together: only in a session does a name promise who wrote it."""
    folder = place.folder / "incident"
    folder.mkdir()
    folder.chmod(hostile.OPEN_TO_ALL)
    for uid, name in ((ALICE, "raylet.out"), (MALLORY, "gcs_server.out")):
        (folder / name).write_text(FORGED)
        of(uid, folder / name)
    with open_capture(str(folder)) as capture:
        assert len(capture.files) == 2
        assert not capture.gaps


@pytest.mark.parametrize(
    ("name", "is_gap"), [("pods.json", True), ("sacct.txt", True), ("private.json", False)]
)
def test_a_saved_output_that_may_not_be_read_is_a_gap(
    place: Ground, name: str, is_gap: bool
) -> None:
    """Its content decides what it is, and nothing says what a file of any other name holds."""
    folder = place.folder / "incident"
    folder.mkdir()
    (folder / "raylet.out").write_text(FORGED)
    (folder / name).write_text("{}")
    (folder / name).chmod(0)

    def gaps() -> list[list[str]]:
        with open_capture(str(folder)) as capture:
            return [[gap.what, gap.why] for gap in capture.gaps]

    gaps()  # loads what that user cannot
    assert hostile.as_user(ALICE, gaps) == (
        [[name, "cannot be read: Permission denied"]] if is_gap else []
    )


@pytest.mark.parametrize("plant", PLANTED)
def test_a_log_of_a_named_session_leads_root_nowhere(place: Ground, plant: Plant) -> None:
    theirs = place.session(1, MALLORY)
    log = theirs / "logs" / "gcs_server.out"
    plant(log, place.folder / "secret")
    of(MALLORY, log)
    with open_capture(str(theirs.parent), session=theirs.name) as capture:
        reply = render(engine.run(capture))
    assert SECRET not in reply
    assert "PATH=" not in reply


def test_the_sessions_of_a_folder_do_not_include_links(place: Ground) -> None:
    """`--session all` reads what is there, not what Mallory's link leads to."""
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    root = place.session(1, 0).parent
    link = root / "session_2026-11-21_11-00-00_000000_9"
    link.symlink_to(elsewhere)
    of(MALLORY, link)
    assert link.name not in session.names_in(root)
