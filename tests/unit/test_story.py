"""The story of one id, pid or name: who is meant, what else it goes by, which lines belong to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from raydoctor import cli
from raydoctor.capture.open import open_capture
from raydoctor.case import signals
from raydoctor.model.entities import Entity
from raydoctor.model.errors import RaydoctorError
from raydoctor.read.story import Story, story_of
from raydoctor.render import page
from raydoctor.render import story as render

WORKER = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
OTHER = "cd09ffffe17e18918275a6d03cc3a6abc2becabe5e0fd27a533d35b8"
NODE = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
ACTOR = "331fd576af32d153f0d76d1801000000"
TASK = "16310a0f0a45af5c" + ACTOR
OBJECT = TASK + "01000000"
JOB = "01000000"
DRIVER = JOB + "f" * 48
LEASE = "00000001" + WORKER


def record(second: float, text: str, level: str = "I", pid: int = 12) -> str:
    """A record as Ray's C++ writes it, `second` seconds past 07:34."""
    whole, part = divmod(round(second * 1000), 1000)
    return f"[2026-11-21 07:34:{whole:02},{part:03} {level} {pid} {pid}] (raylet) x.cc:1: {text}\n"


FILES: Mapping[str, str] = {
    "logs/raylet.out": (
        record(1, f"Started worker process with pid 503 worker_id={WORKER}")
        + record(2, "Started worker process with pid 50, the token is 3")
        + record(9, f"Memory dump:\n  task of worker {WORKER}\n  and more", "W")
        + record(10, f"Granted lease {LEASE}")
    ),
    "logs/raylet.err": record(9, f"Memory dump:\n  task of worker {WORKER}\n  and more", "W"),
    "logs/gcs_server.out": (
        record(
            3,
            f"Submitting actor creation task to worker. actor_id={ACTOR} worker_id={WORKER} "
            f"node_id={NODE} job_id={JOB}",
        )
        + record(4, f"Task {TASK} failed")
        + record(5, f"Owner of object died. object_id={OBJECT}", "E")
        + record(6, f"Something of worker_id={OTHER}")
        + record(7, f"Finished job, job id = {JOB}")
    ),
    f"logs/worker-{WORKER}-ffffffff-503.out": ":job_id:01000000\n:actor_name:Mesh\nrefined\n\n",
    f"logs/python-core-worker-{WORKER}_503.log": (
        record(1.5, "Initializing worker", pid=503) + record(8, "RPC failed", "W", pid=503)
    ),
    f"logs/python-core-driver-{DRIVER}_7.log": record(2.5, "Submitting", "E", pid=7),
    "driver.log": f"(Mesh pid=503) refined\nOwner worker ID: {WORKER}\npid=5031 is another\n",
}


@pytest.fixture(name="story")
def _story(tmp_path: Path) -> Callable[..., Story]:
    return teller(write(tmp_path, FILES))


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


def teller(folder: Path) -> Callable[..., Story]:
    def reply(what: str, everything: bool = False) -> Story:
        with open_capture(str(folder)) as capture:
            return story_of(capture, what, everything)

    return reply


def places(reply: Story) -> list[str]:
    return [f"{e.source.path.rpartition('/')[2][:17]}:{e.line}" for e in reply.entries]


Tell = Callable[..., Story]


def test_a_worker_in_time_order_with_its_pid_and_own_logs(story: Tell) -> None:
    reply = story(WORKER)
    assert reply.subject == Entity("worker", WORKER)
    assert [alias.entity for alias in reply.aliases] == [Entity("process", "/503")]
    assert places(reply) == [
        "raylet.out:1",
        "gcs_server.out:1",
        "python-core-worke:2",
        "raylet.out:4",
        "raylet.out:6",
        "driver.log:1",
        "driver.log:2",
        f"worker-{WORKER[:10]}:1",
        f"worker-{WORKER[:10]}:2",
        f"worker-{WORKER[:10]}:3",
    ]
    assert list(reply.omitted.values()) == [1], "the routine line of its own log"


def test_everything_means_routine_lines_too(story: Tell) -> None:
    reply = story(WORKER, everything=True)
    assert not reply.omitted
    assert "python-core-worke:1" in places(reply)


def test_a_record_s_further_lines_have_its_time_and_its_twin_is_left_out(story: Tell) -> None:
    (dump,) = [e for e in story(WORKER).entries if "task of worker" in e.message]
    assert dump.inherited
    assert dump.source.role == "raylet-out"
    assert dump.at == story("Memory").entries[0].at


def test_what_user_code_prints_has_no_time_of_the_line_above(tmp_path: Path) -> None:
    ray = "2026-11-21 07:34:01,000\tINFO worker.py:2029 -- Started a local Ray instance.\n"
    write(tmp_path, {**FILES, "driver.log": f"{ray}Owner worker ID: {WORKER}\n"})
    (entry,) = [e for e in teller(tmp_path)(WORKER).entries if e.source.role == "driver"]
    assert (entry.at, entry.inherited) == (None, False)


@pytest.mark.parametrize(
    "what", [WORKER[:6], WORKER[:20], WORKER.upper(), f"WorkerID({WORKER})", f" {WORKER[:8]} "]
)
def test_ways_to_name_a_worker(story: Tell, what: str) -> None:
    assert story(what).subject == Entity("worker", WORKER)


@pytest.mark.parametrize("what", ["503", "pid:503", "pid:/503"])
def test_ways_to_name_a_process(story: Tell, what: str) -> None:
    reply = story(what)
    assert reply.subject == Entity("process", "/503")
    assert [alias.entity for alias in reply.aliases] == [Entity("worker", WORKER)]
    assert {entry.message for entry in reply.entries} == {e.message for e in story(WORKER).entries}


def test_a_pid_is_not_the_beginning_of_another(story: Tell) -> None:
    assert places(story("50")) == ["raylet.out:2"]


def test_an_actor_with_its_worker(story: Tell) -> None:
    reply = story(ACTOR[:8])
    assert reply.subject == Entity("actor", ACTOR)
    assert [alias.entity for alias in reply.aliases] == [Entity("worker", WORKER)]
    assert {"raylet.out:1", "gcs_server.out:2", "gcs_server.out:3"} <= set(places(reply))


def test_an_object_with_its_creator(story: Tell) -> None:
    reply = story(OBJECT)
    assert reply.subject == Entity("object", OBJECT)
    assert [a.entity for a in reply.aliases] == [Entity("task", TASK)]
    assert "returned it (value 1)" in reply.aliases[0].why
    assert places(reply) == ["gcs_server.out:2", "gcs_server.out:3"]


def test_a_task_s_objects_do_not_make_it_ambiguous(story: Tell) -> None:
    assert story(TASK[:10]).subject == Entity("task", TASK)


def test_a_lease_with_its_submitter(story: Tell) -> None:
    reply = story(LEASE)
    assert reply.subject.kind == "lease"
    assert [alias.entity for alias in reply.aliases] == [Entity("worker", WORKER)]


def test_a_job_stands_alone_and_brings_its_driver(story: Tell) -> None:
    reply = story(JOB)
    assert reply.subject == Entity("job", JOB)
    assert [alias.entity for alias in reply.aliases] == [Entity("worker", DRIVER)]
    assert "gcs_server.out:5" in places(reply)
    assert "gcs_server.out:2" not in places(reply), "an id that ends with the job's"
    assert "python-core-drive:1" in places(reply)


@pytest.mark.parametrize("what", ["name:Mesh", "Mesh"])
def test_a_name(story: Tell, what: str) -> None:
    reply = story(what)
    assert reply.subject == Entity("name", "Mesh")
    assert places(reply) == ["driver.log:1", f"worker-{WORKER[:10]}:2"]


def test_what_else_the_lines_name(story: Tell) -> None:
    assert (Entity("actor", ACTOR), 1) in story(WORKER).related


def test_an_ambiguous_prefix_names_the_candidates(tmp_path: Path) -> None:
    twin = WORKER[:7] + "0" * 49
    reply = teller(write(tmp_path, {**FILES, "driver.log": f"worker_id={twin}\n"}))
    with pytest.raises(RaydoctorError, match="ambiguous: 2 ids") as refused:
        reply(WORKER[:7])
    assert refused.value.hint == f"Give more digits: worker {twin}, worker {WORKER}"
    assert reply(WORKER[:8]).subject == Entity("worker", WORKER)


def test_a_pid_on_two_nodes_is_ambiguous(tmp_path: Path) -> None:
    second = OTHER.replace("f", "a")
    write(tmp_path / "a", FILES)
    write(tmp_path / "b", {f"logs/worker-{second}-ffffffff-503.out": "hello\n"})
    reply = teller(tmp_path)
    with pytest.raises(RaydoctorError, match="2 nodes") as refused:
        reply("503")
    assert refused.value.hint == "Name one: pid:a/503, pid:b/503"
    assert [e.message for e in reply("pid:b/503").entries] == ["hello"]
    assert reply("pid:b/503").subject == Entity("process", "b/503")


def test_the_unknown_lists_what_there_is(story: Tell) -> None:
    reply = story("abcdef12")
    assert not reply.entries
    assert (Entity("worker", WORKER), "pid 503") in reply.known
    assert (Entity("actor", ACTOR), "") in reply.known


def test_times_go_by_the_zone_that_the_logs_show(tmp_path: Path) -> None:
    """An event file has the epoch of an end that the GCS logs in local time, nine hours off."""
    seen = {"timestamp": 1795214045, "message": signals.WORKER_DIED.sample, "source_type": "RAYLET"}
    files = {
        **FILES,
        "logs/gcs_server.out": record(4, f"about {WORKER}")
        + record(5, signals.WORKER_EXIT.sample, "W"),
        "logs/events/event_RAYLET.log": json.dumps(seen) + "\n",
    }
    reply = teller(write(tmp_path, files))(WORKER)
    assert next(e.at for e in reply.entries if e.source.role == "gcs-out") == 1795214044.0


# ---------------------------------------------------------------- as the user sees it


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.execute(["story", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_page(story: Tell) -> None:
    text = page.plain(render.render(story(WORKER), 100))
    lines = text.splitlines()
    assert lines[0] == f"worker {WORKER}"
    assert lines[1] == "also pid 503  (its log files' names)"
    assert "2026-11-21" in lines
    assert any("raylet.out:1" in row and "Started worker process" in row for row in lines)
    assert lines.index("without a time") > lines.index("2026-11-21")
    assert "10 lines in 5 files" in text
    assert "1 routine line of its own logs not shown: --all" in text
    assert max(map(len, lines)) <= 100


def test_messages_are_whole_in_a_pipe(story: Tell) -> None:
    text = page.plain(render.render(story(ACTOR), None))
    assert "node_id=4392271d… job_id=01000000" in text
    assert "node_id=" not in page.plain(render.render(story(ACTOR), 80))


def test_exit_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path, FILES)
    assert say(capsys, WORKER[:8], tmp_path)[0] == 0
    code, out, err = say(capsys, "abcdef12", tmp_path)
    assert (code, out) == (1, "")
    assert "workers: cd09fc46 (pid 503)" in err
    assert say(capsys, WORKER[:8], tmp_path / "none")[0] == 2


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path, FILES)
    document = json.loads(say(capsys, ACTOR[:8], tmp_path, "--format", "json")[1])
    assert document["schema"] == "raydoctor/story/1"
    assert document["subject"] == {"kind": "actor", "id": ACTOR}
    assert [a["id"] for a in document["aliases"]] == [WORKER]
    assert {"at", "node", "file", "line", "level", "message"} <= set(document["lines"][0])
    code, out, _ = say(capsys, "abcdef12", tmp_path, "--format", "json")
    assert code == 1
    assert json.loads(out)["known"][0]["id"] == ACTOR
