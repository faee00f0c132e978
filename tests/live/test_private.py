"""The folder between processes and raydoctor, against users who own it, swap it, or made it first."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raydoctor.act import audit, private
from raydoctor.act.attach import arm, attach, gil, inject
from raydoctor.act.attach.gil import GilSample
from raydoctor.act.audit import Audit
from raydoctor.act.tracking import registry
from raydoctor.act.zombies import history, leftovers, unseen
from raydoctor.act.zombies.leftovers import SweepOptions
from raydoctor.capture import owners
from raydoctor.observe.processes import proc
from tests.helpers.other_users import AS_ROOT, ATTACKER, SECONDS, VICTIM, result_of, running_as

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
FOLDER, HIDDEN = f"/tmp/raydoctor-{ATTACKER}", f"/tmp/raydoctor-{ATTACKER}-hidden"
_MEMORY = 512 << 20
_ROUNDS = 10
_WATCHED = 0x7FF
"""All that inotify(7) reports of a file: reads, writes, changes of attributes, new and removed names."""


class Treasure(NamedTuple):
    """What the attacker would like root to touch."""

    roots: Path
    victims: Path

    def state(self) -> list[tuple[str, ...]]:
        """Names, owners, modes and contents."""
        found = []
        for path in sorted(p for top in self for p in (top, *top.rglob("*"))):
            status = path.lstat()
            content = path.read_text() if path.is_file() else ""
            words = (status.st_uid, status.st_gid, status.st_mode, status.st_nlink, content)
            found.append((str(path), *map(str, words)))
        return found


@pytest.fixture
def treasure() -> Iterator[Treasure]:
    """Below /tmp, as the attacker must be able to name it; reachable by all, changeable by its owner."""
    made = []
    for user, name in ((0, "root"), (VICTIM, "victim")):
        top = Path(f"/tmp/raydoctor-treasure-{name}")
        shutil.rmtree(top, ignore_errors=True)
        (top / "packages").mkdir(parents=True)
        answer = {"host": "127.0.0.1", "port": 1}
        (top / "secret").write_text(json.dumps(answer))
        (top / "arm.py").write_text("mine")
        (top / "dead-4194305-1").write_text("of nobody who lives")
        for path in (top, *top.rglob("*")):
            os.chown(path, user, user)
        made.append(top)
    yield Treasure(*made)
    for top in made:
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A machine on which the attacker and the victim have left nothing."""
    paths = [FOLDER, HIDDEN, f"/tmp/raydoctor-{VICTIM}"]
    for each in (*paths, None, *paths):
        if each is None:
            yield
        elif os.path.islink(each) or not os.path.isdir(each):
            Path(each).unlink(missing_ok=True)
        else:
            shutil.rmtree(each, ignore_errors=True)


class Watch:
    """Notices every access to files below some folders (inotify(7))."""

    def __init__(self, tops: Treasure) -> None:
        libc = ctypes.CDLL(None)
        self._file = libc.inotify_init1(os.O_NONBLOCK)
        for top in tops:
            for path in (top, *top.rglob("*")):
                assert libc.inotify_add_watch(self._file, str(path).encode(), _WATCHED) >= 0

    def seen(self) -> list[str]:
        """What was accessed, and how."""
        with suppress(BlockingIOError):
            data, found = os.read(self._file, 1 << 16), []
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                found.append(f"{data[16 : 16 + length].rstrip(bytes(1)).decode()} {mask:#x}")
                data = data[16 + length :]
            return found
        return []


# ------------------------------------------------------------------ attacks on root that attaches


Attack = Callable[[int, Treasure], None]
"""What the attacker does, about the attacker's process with that pid; it may do so without end."""


def own_folder() -> None:
    """As an honest process would have it."""
    os.mkdir(FOLDER, 0o700)


def folder_is_link(pid: int, treasure: Treasure) -> None:
    os.symlink(treasure.roots, FOLDER)


def folder_is_link_to_the_victim(pid: int, treasure: Treasure) -> None:
    os.symlink(treasure.victims, FOLDER)


def folder_is_open_to_all(pid: int, treasure: Treasure) -> None:
    own_folder()
    os.chmod(FOLDER, 0o1777)


def folder_is_a_fifo(pid: int, treasure: Treasure) -> None:
    os.mkfifo(FOLDER)


def program_is_a_fifo(pid: int, treasure: Treasure) -> None:
    own_folder()
    for name in ("arm.py", "private.py", "door.py"):
        os.mkfifo(f"{FOLDER}/{name}")


def program_is_endless(pid: int, treasure: Treasure) -> None:
    own_folder()
    for name in ("arm.py", "private.py", "door.py"):
        os.symlink("/dev/zero", f"{FOLDER}/{name}")


def program_is_huge(pid: int, treasure: Treasure) -> None:
    own_folder()
    with open(f"{FOLDER}/arm.py", "wb") as stream:
        stream.truncate(64 << 30)


def program_is_a_link(pid: int, treasure: Treasure) -> None:
    own_folder()
    os.symlink(treasure.roots / "arm.py", f"{FOLDER}/arm.py")


def answer_is_a_link(pid: int, treasure: Treasure) -> None:
    own_folder()
    forever(lambda: replaced_by_link(answer(pid), treasure.roots / "secret"))


def answer_is_a_hard_link(pid: int, treasure: Treasure) -> None:
    own_folder()

    def swap() -> None:
        with suppress(OSError):  # the system may forbid it: fs.protected_hardlinks
            os.link(treasure.roots / "secret", f"{FOLDER}/.hard")
        with suppress(OSError):
            os.rename(f"{FOLDER}/.hard", answer(pid))

    forever(swap)


def answer_is_a_fifo(pid: int, treasure: Treasure) -> None:
    own_folder()

    def swap() -> None:
        with suppress(FileExistsError):
            os.mkfifo(answer(pid))

    forever(swap)


def answer_is_endless(pid: int, treasure: Treasure) -> None:
    own_folder()
    forever(lambda: replaced_by_link(answer(pid), Path("/dev/zero")))


def answer_is_nonsense(pid: int, treasure: Treasure) -> None:
    own_folder()
    texts = (
        "[" * 3000,
        '{"port": {}}',
        '{"host": "x\\u001b[2J", "port": 1}',
        '{"port": 1e999}',
        "\0",
    )

    def swap() -> None:
        for each in texts:
            with open(answer(pid), "w") as stream:
                stream.write(each)

    forever(swap)


def answer_names_another_machine(pid: int, treasure: Treasure) -> None:
    own_folder()
    text = json.dumps({"host": "192.0.2.1", "port": 22})

    def swap() -> None:
        with open(answer(pid), "w") as stream:
            stream.write(text)

    forever(swap)


def temporary_names_are_links(pid: int, treasure: Treasure) -> None:
    """Root's pid and thread are known, and so are the names that it takes."""
    own_folder()
    root, start = os.getppid(), arm.start_of(pid)
    names = ["arm.py", f"request-{pid}-{start}", f"answer-{pid}-{start}"]
    threads = os.listdir(f"/proc/{root}/task")
    for name in names:
        os.symlink(treasure.roots / "made", f"{FOLDER}/{name}.{root}.new")
        for thread in threads:
            os.symlink(treasure.roots / "made", f"{FOLDER}/new-{root}-{thread}-{name}")


def packages_is_a_link(pid: int, treasure: Treasure) -> None:
    own_folder()
    os.symlink(treasure.roots / "packages", f"{FOLDER}/packages")


def packages_is_swapped(pid: int, treasure: Treasure) -> None:
    own_folder()
    os.mkdir(f"{FOLDER}/.real", 0o700)

    def swap() -> None:
        replaced_by_link(f"{FOLDER}/packages", treasure.roots / "packages")
        os.unlink(f"{FOLDER}/packages")
        os.rename(f"{FOLDER}/.real", f"{FOLDER}/packages")
        os.rename(f"{FOLDER}/packages", f"{FOLDER}/.real")

    forever(swap)


def packages_is_swapped_when_made(pid: int, treasure: Treasure) -> None:
    """Root makes it; before root hands it over, it is a link to a file of root's."""
    own_folder()
    path, hidden = f"{FOLDER}/packages", f"{FOLDER}/.hidden"
    while True:
        with suppress(OSError):
            os.rename(path, hidden)
            os.symlink(treasure.roots / "secret", path)
            time.sleep(0.002)
            os.unlink(path)
            shutil.rmtree(hidden)


def folder_is_swapped_for_roots(pid: int, treasure: Treasure) -> None:
    swap_folder(treasure.roots)


def folder_is_swapped_for_the_victims(pid: int, treasure: Treasure) -> None:
    swap_folder(treasure.victims)


def folder_comes_and_goes(pid: int, treasure: Treasure) -> None:
    """Root makes it, and would hand it over: it must not hand over what is there a moment later."""

    def swap() -> None:
        with suppress(OSError):
            os.rename(FOLDER, HIDDEN)
        with suppress(OSError):
            os.symlink(treasure.roots, FOLDER)
            os.unlink(FOLDER)
        with suppress(OSError):
            shutil.rmtree(HIDDEN)

    forever(swap)


def folder_is_full(pid: int, treasure: Treasure) -> None:
    own_folder()
    for number in range(3000):
        os.close(os.open(f"{FOLDER}/dead-{4194305 + number}-1", os.O_CREAT))


def program_is_swapped(pid: int, treasure: Treasure) -> None:
    own_folder()
    path = f"{FOLDER}/arm.py"

    def swap() -> None:
        replaced_by_link(path, treasure.roots / "arm.py")
        replaced_by_link(path, Path("/dev/zero"))
        with suppress(OSError):
            os.unlink(path)
            os.mkfifo(path)

    forever(swap)


def swap_folder(target: Path) -> None:
    own_folder()

    def swap() -> None:
        os.rename(FOLDER, HIDDEN)
        os.symlink(target, FOLDER)
        os.unlink(FOLDER)
        os.rename(HIDDEN, FOLDER)

    forever(swap)


def answer(pid: int) -> str:
    return f"{FOLDER}/answer-{pid}-{arm.start_of(pid)}"


def replaced_by_link(path: str, target: Path) -> None:
    with suppress(OSError):
        os.symlink(target, f"{path}.mine")
        os.rename(f"{path}.mine", path)


def forever(swap: Callable[[], None]) -> None:
    while True:
        with suppress(FileNotFoundError, FileExistsError):
            swap()


ATTACKS: tuple[Attack, ...] = (
    folder_is_link, folder_is_link_to_the_victim, folder_is_open_to_all, folder_is_a_fifo, program_is_a_fifo,
    program_is_endless, program_is_huge, program_is_a_link, program_is_swapped, answer_is_a_link,
    answer_is_a_hard_link, answer_is_a_fifo, answer_is_endless, answer_is_nonsense,
    answer_names_another_machine, temporary_names_are_links, packages_is_a_link, packages_is_swapped,
    packages_is_swapped_when_made,
    folder_is_swapped_for_roots, folder_is_swapped_for_the_victims, folder_comes_and_goes, folder_is_full,
)  # fmt: skip


@AS_ROOT
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
def test_root_touches_nothing_for_another_user(
    attack: Attack, treasure: Treasure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attach all the way but for the injection: no foreign file is read or changed, and nothing hangs."""
    monkeypatch.setattr(attach, "obstacle", lambda pid: [])
    monkeypatch.setattr(inject, "inject", lambda *args, **more: inject.Injection("called"))
    monkeypatch.setattr(gil, "sample", lambda pid: GilSample())
    monkeypatch.setattr(os, "mkdir", slowly(os.mkdir))
    before = treasure.state()
    target = subprocess.Popen(["sleep", "600"], user=ATTACKER, group=ATTACKER, extra_groups=[])
    try:
        watch = Watch(treasure)
        with running_as(ATTACKER, lambda: attack(target.pid, treasure)):
            ready(attack)
            reply = bounded(lambda: [attached(target.pid) for _ in range(_ROUNDS)])
        assert not watch.seen()
        assert treasure.state() == before
        assert set(reply) <= {"gil", "late", "system", "debugpy"}, reply
    finally:
        target.kill()
        target.wait()


def slowly(call: Callable[..., None]) -> Callable[..., None]:
    """The same, but that the attacker has time before what follows."""

    def called(*args: Any, **more: Any) -> None:
        call(*args, **more)
        time.sleep(0.01)

    return called


def ready(attack: Attack) -> None:
    """Wait until the attack has begun, or cannot."""
    deadline = time.monotonic() + 2.0
    while not os.path.lexists(FOLDER) and time.monotonic() < deadline:
        if attack is folder_comes_and_goes:
            return
        time.sleep(0.01)
    time.sleep(0.05)


def attached(pid: int) -> str:
    """Why it cannot be attached to."""
    try:
        attach.attach(attach.AttachTarget(pid), grace=0.05, audit=Audit("test", path="/dev/null"))
    except attach.NotAttachedError as error:
        return error.why
    return "attached"


def bounded(work: Callable[[], Any]) -> Any:
    """In a process that may take 20 seconds and half a gigabyte more than this one has."""

    def within() -> Any:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
        return work()

    return result_of(0, within, SECONDS)


# ------------------------------------------------------------------ a registry that another user has planted

VICTIMS = f"/tmp/raydoctor-{VICTIM}"


def in_a_folder_of_the_attackers(text: str) -> None:
    os.mkdir(VICTIMS, 0o755)
    Path(VICTIMS, PLANTED).write_text(text)


def in_a_private_folder_of_the_attackers(text: str) -> None:
    in_a_folder_of_the_attackers(text)
    os.chmod(f"{VICTIMS}/{PLANTED}", 0o644)
    os.chmod(VICTIMS, 0o711)


def behind_a_link(text: str) -> None:
    os.mkdir(HIDDEN, 0o755)
    Path(HIDDEN, PLANTED).write_text(text)
    os.symlink(HIDDEN, VICTIMS)


def in_a_folder_that_is_open_to_all(text: str) -> None:
    of_the_victim(0o777)
    Path(VICTIMS, PLANTED).write_text(text)


def as_a_link_in_the_victims_folder(text: str) -> None:
    """The victim was made to create it, or unpacked an archive there."""
    of_the_victim(0o700)
    in_a_folder_elsewhere(text)
    as_victim(lambda: os.symlink(f"{HIDDEN}/{PLANTED}", f"{VICTIMS}/{PLANTED}"))


def as_a_file_that_all_can_write(text: str) -> None:
    of_the_victim(0o700)

    def make() -> None:
        Path(VICTIMS, PLANTED).write_text(text)
        os.chmod(f"{VICTIMS}/{PLANTED}", 0o666)

    as_victim(make)


def as_a_fifo(text: str) -> None:
    of_the_victim(0o700)
    as_victim(lambda: os.mkfifo(f"{VICTIMS}/{PLANTED}"))


def in_a_folder_elsewhere(text: str) -> None:
    os.mkdir(HIDDEN, 0o755)
    Path(HIDDEN, PLANTED).write_text(text)


def of_the_victim(mode: int) -> None:
    def make() -> None:
        os.mkdir(VICTIMS)
        os.chmod(VICTIMS, mode)

    as_victim(make)


def as_victim(work: Callable[[], None]) -> None:
    """The attacker here has root's rights, so that nothing depends on how the file got there."""
    result_of(VICTIM, work)


PLANTED = "4194305-1.00.seen"
"""Of a worker that is gone: no pid is as high."""
PLANTS = (
    in_a_folder_of_the_attackers, in_a_private_folder_of_the_attackers, behind_a_link,
    in_a_folder_that_is_open_to_all, as_a_link_in_the_victims_folder, as_a_file_that_all_can_write, as_a_fifo,
)  # fmt: skip


@AS_ROOT
@pytest.mark.parametrize("plant", PLANTS, ids=lambda each: each.__name__)
def test_a_planted_registry_ends_no_process(plant: Callable[[str], None]) -> None:
    leftovers.find(settle=False)  # loads what the victim cannot
    with running_as(VICTIM, lambda: time.sleep(600)) as pid:
        process = proc.read(pid)
        assert process is not None
        text = f"begin 0 01000000 0\nsaw 0 {pid} {process.started_at:.2f} -\n"
        if plant in PLANTS[:3]:
            result_of(ATTACKER, lambda: plant(text))
        else:
            plant(text)

        def sweep() -> list[Any]:
            found = [each for each in leftovers.find(settle=False) if each.pid == pid]
            leftovers.clear(found, SweepOptions(), 0.1, audit=Audit("test", path="/dev/null"))
            return [[each.pid for each in found], unseen.unseen()]

        found, said = result_of(VICTIM, sweep)
        assert found == []
        now = proc.read(pid)
        assert now is not None
        assert (now.started_at, now.state) == (process.started_at, "S")
        foreign = plant in PLANTS[:4]
        assert (f"{VICTIMS} is ignored" in said) is foreign, said


@AS_ROOT
def test_nothing_is_written_into_a_folder_of_another_user() -> None:
    """Neither into a link that another user has made, nor with a way around it."""
    result_of(ATTACKER, lambda: os.mkdir(VICTIMS, 0o777))

    def work() -> list[str]:
        reply = []
        for lasting in (False, True):
            try:
                private.created(lasting=lasting).close()
            except PermissionError as error:
                reply.append(str(error.filename))
        with suppress(PermissionError):
            reply.append(registry.path_of(registry.StartedProcess(1, 1.0)))
        return reply

    assert result_of(VICTIM, work) == [VICTIMS, VICTIMS]
    assert os.listdir(VICTIMS) == []


# ------------------------------------------------------------------ other files of root's


@AS_ROOT
@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_root_writes_no_audit_for_another_user(
    variable: str, treasure: Treasure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sudo` may keep these: the folder is the attacker's, and leads into a folder of root's."""
    result_of(ATTACKER, lambda: os.mkdir(HIDDEN))
    link = f"{HIDDEN}/.local" if variable == "HOME" else f"{HIDDEN}/raydoctor"
    os.symlink(treasure.roots, link)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, HIDDEN)
    monkeypatch.setattr(owners, "_home", lambda: str(tmp_path))
    before = treasure.state()
    Audit("test").write("tried")
    assert treasure.state() == before
    assert audit.default_path() == str(tmp_path / ".local/state/raydoctor/audit.jsonl")
    assert "tried" in Path(audit.default_path()).read_text()


def test_an_audit_that_is_no_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "raydoctor").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "raydoctor" / "audit.jsonl")

    def work() -> str:
        made = Audit("test")
        made.write("tried")
        return made.problem

    assert "audit.jsonl" in result_of(os.geteuid(), work)


def test_a_log_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """Every user may make a session below /tmp/ray."""
    logs = tmp_path / "session_2026-11-21_10-00-00_000000_1" / "logs"
    logs.mkdir(parents=True)
    os.mkfifo(logs / "raylet.out")
    (logs / "raylet.1.out").symlink_to("/dev/zero")
    raylets = history.Raylets([str(logs.parent)])
    assert result_of(os.geteuid(), lambda: raylets.of(str(logs.parent))) == []


# ------------------------------------------------------------------ where it is


def test_the_runtime_folder_comes_first_and_is_no_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, shared = tmp_path / "run", tmp_path / "shared"
    shared.mkdir()
    places = ((str(runtime), "raydoctor"), (str(shared), "raydoctor-7"))
    monkeypatch.setattr(private, "places", lambda user: places)
    monkeypatch.setattr(private, "_SHARED", str(shared))
    with private.created() as folder:
        assert folder.path == str(shared / "raydoctor-7")
        folder.write("old", b"")
    runtime.mkdir(mode=0o700)
    with private.created() as folder:
        assert folder.path == str(runtime / "raydoctor")
        folder.write("new", b"")
    with private.created(lasting=True) as folder:
        assert folder.path == str(shared / "raydoctor-7"), "it outlives the login"
    assert [each.names() for each in private.existing()] == [["new"], ["old"]]
    runtime.chmod(0o755)
    with private.created() as folder:
        assert folder.path == str(shared / "raydoctor-7")


def test_both_sides_look_in_the_same_places() -> None:
    assert [each.format(5) for each in arm.FOLDERS] == [os.path.join(*p) for p in private.places(5)]


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    with private.opened(str(tmp_path)) as folder:
        folder.write("file", b"x" * 10)
        assert folder.read("file", 10) == b"x" * 10
        with pytest.raises(OSError, match="more than 9 bytes"):
            folder.read("file", 9)
        assert stat.S_IMODE(os.stat(tmp_path / "file").st_mode) == 0o600
        folder.append("file", b"y")
        assert folder.read("file").endswith(b"xy")
        assert folder.names() == ["file"]


def test_the_audit_is_written_into_a_folder_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`raydoctor run` of older versions made it so."""
    folder = tmp_path / "raydoctor"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = audit.Audit("test")
    record.write("signal", pid=1)
    assert record.problem == ""
    assert folder.stat().st_mode & 0o777 == 0o700
