"""Files that another user plants where a report, an archive, a skill or a driver's output is to be written.

The victim is root: nothing of root's is replaced, and the planter can read nothing that is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydoctor import cli
from raydoctor.act.attach import launch
from raydoctor.cli import run
from raydoctor.cli._files import write_atomically
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import bundle
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import Redactor
from tests.helpers import hostile
from tests.helpers.hostile import MALLORY, OPEN_TO_ALL

pytestmark = pytest.mark.skipif(
    not proc.LINUX or os.geteuid() != 0, reason="plays several users: Linux, as root"
)
KEPT = "what root keeps"


@pytest.fixture(name="place")
def _place() -> Iterator[Path]:
    """A folder where all users may create files, as in `/tmp`; beside it `roots/kept`."""
    with hostile.ground() as found:
        (found.folder / "roots").mkdir()
        (found.folder / "roots" / "kept").write_text(KEPT)
        shared = found.folder / "shared"
        shared.mkdir()
        shared.chmod(OPEN_TO_ALL | stat.S_ISVTX)
        yield shared


def theirs(path: Path) -> Path:
    os.lchown(path, MALLORY, MALLORY)
    return path


def a_link(place: Path) -> Path:
    (place / "out").symlink_to("../roots/kept")
    return theirs(place / "out")


def a_link_to_a_new_file(place: Path) -> Path:
    (place / "out").symlink_to("../roots/new")
    return theirs(place / "out")


def a_link_through_ours(place: Path) -> Path:
    """Root's own link leads to one of Mallory's."""
    (place / "hop").symlink_to("../roots/kept")
    theirs(place / "hop")
    (place / "out").symlink_to("hop")
    return place / "out"


def a_folder_that_is_a_link(place: Path) -> Path:
    (place / "folder").symlink_to("../roots")
    theirs(place / "folder")
    return place / "folder" / "kept"


def a_folder_and_back(place: Path) -> Path:
    """`..` behind a link is the parent of its target."""
    (place.parent / "roots" / "deep").mkdir()
    (place / "folder").symlink_to("../roots/deep")
    theirs(place / "folder")
    return place / "folder" / ".." / "kept"


def a_pipe(place: Path) -> Path:
    """With a reader: otherwise the writer would wait for one."""
    os.mkfifo(place / "out", 0o666)
    return theirs(place / "out")


PLANTED = (
    a_link,
    a_link_to_a_new_file,
    a_link_through_ours,
    a_folder_that_is_a_link,
    a_folder_and_back,
    a_pipe,
)
Plant = Callable[[Path], Path]


def to_report(path: Path) -> None:
    write_atomically(str(path), "a report")


def to_archive(path: Path) -> None:
    """Its suffix is one of archives."""
    target = path.with_name(f"{path.name}.tar")
    if path.parent.is_symlink() or path.name == "kept":
        (path.parent / "kept.tar").write_text(KEPT)
    else:
        os.rename(path, target)
    bundle.write(str(target), bundle.Bundle({}, {"x": b"x"}, (), {}), Redactor())


def to_driver_log(path: Path) -> None:
    run._opened(str(path)).close()


def to_launch_json(path: Path) -> None:
    launch.write(path, {"name": "raydoctor"})


WRITERS = (to_report, to_archive, to_driver_log, to_launch_json)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("plant", PLANTED)
def test_an_output_leads_root_nowhere(
    place: Path, plant: Plant, write: Callable[[Path], None]
) -> None:
    path = plant(place)
    with pytest.raises(RaydoctorError, match=f"is a (link|pipe) of {MALLORY}"):
        write(path)
    roots = place.parent / "roots"
    assert {file.name for file in roots.iterdir()} <= {"kept", "deep", "kept.tar"}
    assert all(file.read_text() == KEPT for file in roots.glob("kept*"))


@pytest.mark.parametrize("words", [["skill"], ["rules", "pages"], ["rules", "new", "x-y", "--dir"]])
def test_a_folder_of_outputs_leads_root_nowhere(
    place: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_folder_that_is_a_link(place).parent
    assert cli.execute([*words, str(folder)]) == 2
    assert f"{folder} is a link of {MALLORY}" in capsys.readouterr().err
    assert [each.name for each in (place.parent / "roots").iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["SKILL.md", "references"])
def test_a_folder_of_theirs_holds_no_way_out(place: Path, name: str) -> None:
    """Root writes a skill into a folder that Mallory made, where a part of the skill is a link."""
    folder = place / "raydoctor"
    folder.mkdir()
    theirs(folder)
    (folder / name).symlink_to(place.parent / "roots" / ("kept" if "." in name else ""))
    theirs(folder / name)
    assert cli.execute(["skill", str(folder)]) == 2
    assert [each.name for each in (place.parent / "roots").iterdir()] == ["kept"]
    assert (place.parent / "roots" / "kept").read_text() == KEPT


def test_the_reader_of_a_file_of_theirs_does_not_get_the_output(place: Path) -> None:
    """Mallory made the file, so that a driver's raw output would go where Mallory reads."""
    path = place / "out"
    path.write_text("")
    theirs(path)
    path.chmod(0o666)
    with path.open() as reader:
        with pytest.raises(RaydoctorError, match=f"it belongs to {MALLORY}"):
            run._opened(str(path))
        write_atomically(str(path), "a report")
        assert reader.read() == ""
    assert (path.stat().st_uid, path.stat().st_mode & 0o022) == (0, 0)


def test_links_and_pipes_of_our_own_are_followed(place: Path) -> None:
    kept = place.parent / "roots" / "kept"
    (place / "out").symlink_to(kept)
    write_atomically(str(place / "out"), "a report")
    assert kept.read_text() == "a report"
    assert (place / "out").is_symlink()
    readable, writable = os.pipe()
    write_atomically(f"/proc/self/fd/{writable}", "to a pipe")
    assert os.read(readable, 100) == b"to a pipe"
    run._opened(f"/dev/fd/{writable}").close()
    for each in (readable, writable):
        os.close(each)
    write_atomically("/dev/null", "away")


def test_links_that_lead_to_each_other_end(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(RaydoctorError, match="Too many levels"):
        write_atomically(str(place / "a"), "x")
