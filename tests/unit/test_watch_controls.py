"""The screen of `raydoctor watch`: what its keys show or ask for, and what a redraw writes."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest

from raydoctor.cli.screen import watch_screen
from raydoctor.cli.screen.screen import Screen
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.watching.clocks import RunningClock
from raydoctor.observe.watching.watching import ReportedTask
from raydoctor.render.page import line
from raydoctor.watch import controls
from raydoctor.watch.controls import Controls, UserRequest
from raydoctor.watch.view import TaskLine


def task(name: str, number: int, hang: str = "") -> TaskLine:
    run = ReportedTask(
        f"{number:048x}", f"{number:056x}", 100 + number, f"10.0.0.{9 - number}", "node"
    )
    return TaskLine(RunningClock(run, began=float(number), seen=0.0, unseen=0.0), name, None, hang)


MESH, API, STUCK = task("mesh_part", 1), task("Api.serve", 2), task("stuck", 3, "event")
LINES = [MESH, API, STUCK]


def after(*pressed: str, of: Controls = Controls()) -> tuple[Controls, list[UserRequest]]:  # noqa: B008
    requests = []
    for key in pressed:
        of, request = controls.press(of, key, LINES)
        requests += [request] if request else []
    return of, requests


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("\x1b[A\x1b[Bq", ["up", "down", "q"]),
        ("\x1bOA\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "page up", "page down", "home", "end"]),
        ("\x1b", ["esc"]),
        ("\r\x7fü", ["enter", "backspace", "ü"]),
        ("\x1b[1;5C\x1b[200~x", ["x"]),  # Ctrl-Right and the begin of a paste do nothing
    ],
)
def test_names_of_keys(text: str, names: list[str]) -> None:
    assert controls.keys(text) == names


@pytest.mark.parametrize(
    ("presses", "names"),
    [
        (0, ["mesh_part", "Api.serve", "stuck"]),
        (1, ["Api.serve", "mesh_part", "stuck"]),
        (2, ["stuck", "mesh_part", "Api.serve"]),
        (3, ["stuck", "Api.serve", "mesh_part"]),
        (4, ["mesh_part", "Api.serve", "stuck"]),
    ],
)
def test_s_changes_the_order(presses: int, names: list[str]) -> None:
    chosen, _ = after(*"s" * presses)
    assert [each.name for each in controls.shown(LINES, chosen)] == names


@pytest.mark.parametrize("text", ["api", "pid 102", "10.0.0.7", "2" + " " * 0])
def test_the_filter_looks_at_all_that_a_row_shows(text: str) -> None:
    chosen, requests = after("/", *text, "enter")
    assert API in controls.shown(LINES, chosen)
    assert not requests
    assert controls.shown(LINES, after("esc", of=chosen)[0]) == LINES


def test_letters_of_a_filter_are_no_commands() -> None:
    chosen, requests = after("/", *"qcs?", "backspace")
    assert (chosen.filter, chosen.is_typing, requests) == ("qcs", True, [])
    assert after("esc", of=chosen)[0].filter == ""


def test_the_selection_follows_its_task_and_then_its_place() -> None:
    chosen, _ = after("down", "down")
    assert controls.row_of(LINES, chosen) == 1
    assert controls.row_of([API, MESH], chosen) == 0
    assert controls.row_of([MESH, STUCK], chosen) == 1  # the task has ended
    assert controls.row_of([], chosen) == -1
    assert controls.row_of(LINES, after("end", "k", "page up", of=chosen)[0]) == 0


def test_a_cancel_needs_a_selection_and_a_confirmation() -> None:
    assert after("c", "y") == (Controls(), [])
    asked, requests = after("j", "c")
    assert (asked.cancels, requests) == (MESH, [])
    for key in ("n", "enter", "esc", "q", " "):
        kept, requests = after(key, of=asked)
        assert (kept.cancels, requests) == (None, [])
    sent, requests = after("y", of=asked)
    assert requests == [UserRequest("cancel", MESH)]
    assert (sent.pane, sent.cancels) == ("output", None)


def test_a_confirmed_cancel_is_for_what_still_runs_and_not_for_its_namesake() -> None:
    """In the next session, and after a retry, a task has the same id and another worker."""
    asked, _ = after("j", "c")
    retry = TaskLine(
        RunningClock(MESH.running.run._replace(worker="f" * 56), 1.0, 0.0, 0.0), MESH.name, None, ""
    )
    for lines in ([API], [retry, API]):
        assert controls.press(asked, "y", lines) == (replace(asked, cancels=None), None)


@pytest.mark.parametrize(("typed", "more"), [((), ["--found"]), (("127.0.0.1:6379",), [])])
def test_commands_get_the_watched_cluster(
    typed: tuple[str, ...], more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of another cluster have the same ids. Its address is trusted only as far as the user typed it."""
    watch = SimpleNamespace(cluster=Cluster(gcs_address="127.0.0.1:6379", typed=typed))
    screen = watch_screen._WatchScreen(watch)  # type: ignore[arg-type]
    started: list[list[str]] = []
    monkeypatch.setattr(screen.command, "start", lambda words, width: started.append(words))
    for what in ("stack", "cancel"):
        screen._start(UserRequest(what, MESH), 80)  # type: ignore[arg-type]
    address = ["--address", "127.0.0.1:6379"]
    task = MESH.running.run.task
    assert started == [["stack", task, *more, *address], ["cancel", task, "--yes", *more, *address]]


def test_panes_open_scroll_and_close() -> None:
    opened, requests = after("j", "enter")
    assert (opened.pane, requests) == ("output", [UserRequest("stack", MESH)])
    assert after("down", "page down", "up", of=opened)[0].top == controls.PAGE
    assert after("esc", of=opened)[0].pane == "tasks"
    assert after("?", of=opened)[0].pane == "help"
    assert after("?", "?")[0].pane == "tasks"
    assert after("?", "q")[1] == [UserRequest("quit")]


def test_a_redraw_writes_only_the_lines_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    screen = Screen(out)

    def written(*rows: str, is_whole: bool = False) -> str:
        out.seek(0)
        out.truncate()
        screen.draw(lambda width, height: [line(row) for row in rows], is_whole=is_whole)
        return out.getvalue()

    assert written("a", "b") == "\x1b[2J\x1b[1;1H\x1b[2Ka\x1b[2;1H\x1b[2Kb"
    assert written("a", "c") == "\x1b[2;1H\x1b[2Kc"
    assert written("a") == "\x1b[2;1H\x1b[2K"
    assert written("a", is_whole=True) == "\x1b[2J\x1b[1;1H\x1b[2Ka"
