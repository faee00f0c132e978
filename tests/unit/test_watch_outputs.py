"""What a watch gives to other programs: metrics over HTTP, notifications, and log silence."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from raydoctor.model.errors import RaydoctorError
from raydoctor.model.status import Gauge
from raydoctor.model.text import one_line
from raydoctor.observe.watching import silence as log_silence
from raydoctor.observe.watching.silence import LogSilence
from raydoctor.render.watch import event_to_json
from raydoctor.watch import changes, notify, serve
from raydoctor.watch.event import WatchEvent, event
from tests.helpers import schemas
from tests.helpers.hostile_text import CORPUS
from tests.helpers.waiting import until

# ---------------------------------------------------------------- metrics


@pytest.fixture(name="server")
def _server() -> Iterator[serve.MetricsServer]:
    with serve.MetricsServer("127.0.0.1", 0, "text/plain") as server:
        server.text = "raydoctor_cluster_up 1.0\n# EOF\n"
        yield server


def get(
    port: int, path: str = "/metrics", host: str = "127.0.0.1", method: str = "GET"
) -> tuple[int, bytes, dict[str, str]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as link:
        link.request(method, path, headers={"Host": host})
        reply = link.getresponse()
        return reply.status, reply.read(), dict(reply.headers)


def test_the_latest_metrics_are_served(server: serve.MetricsServer) -> None:
    status, body, headers = get(server.port)
    assert (status, body) == (200, server.text.encode())
    assert headers["Content-Type"] == "text/plain"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not any(name.startswith("Access-Control") for name in headers)
    server.text = "x 2\n"
    assert get(server.port)[1] == b"x 2\n"
    assert get(server.port, method="HEAD")[:2] == (200, b"")
    assert get(server.port, path="/../etc/passwd")[0] == 404
    assert get(server.port, method="POST")[0] == 501
    server.text = ""
    assert get(server.port)[0] == 503


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "", "[", "localhost.x"]
)
def test_a_name_that_resolves_to_this_machine_is_refused(
    host: str, server: serve.MetricsServer
) -> None:
    status, body, _ = get(server.port, host=host)
    assert status == 403
    assert b"raydoctor_cluster_up" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:9105", "127.0.0.1:9105", "[::1]:9105"])
def test_an_address_is_served(host: str, server: serve.MetricsServer) -> None:
    assert get(server.port, host=host)[0] == 200


def test_clients_that_send_nothing_take_no_more_than_their_share(
    server: serve.MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_PATIENCE", 0.5)
    before = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    until(lambda: threading.active_count() > before)
    assert threading.active_count() <= before + 2 * serve._MOST  # each has a timer
    for link in held[20:]:
        link.close()
    until(lambda: _is_served(server.port))
    for link in held[:20]:
        link.close()


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(
    server: serve.MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_PATIENCE", 0.5)
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(serve._MOST)]

    def drip() -> bool:
        for link in held:
            with suppress(OSError):
                link.send(b"G")
        return _is_served(server.port)

    until(drip)
    for link in held:
        link.close()


def _is_served(port: int) -> bool:
    try:
        return get(port)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_port_in_use_is_an_error(server: serve.MetricsServer) -> None:
    with pytest.raises(RaydoctorError, match=r"cannot listen on 127\.0\.0\.1"):
        serve.MetricsServer("127.0.0.1", server.port, "text/plain")


def test_addresses() -> None:
    assert serve.address("9105") == ("127.0.0.1", 9105)
    assert serve.address("localhost:9105") == ("127.0.0.1", 9105)
    assert serve.address("[::1]:9105") == ("::1", 9105)
    assert serve.address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert not serve.is_loopback("0.0.0.0")
    for wrong in ("", "x:80", "127.0.0.1", "127.0.0.1:99999", "a@127.0.0.1:80", "127.0.0.1:80/x"):
        with pytest.raises(ValueError, match=r"."):
            serve.address(wrong)


# ---------------------------------------------------------------- events


@pytest.mark.parametrize(
    ("used", "level", "gauge_level"), [(96, "error", "over"), (90, "warning", "near")]
)
def test_the_level_of_a_gauges_event_is_the_events(used: int, level: str, gauge_level: str) -> None:
    gauge = Gauge("n", "10.0.0.1", "memory", "", used, 100, 0.95)
    (found,) = changes.levels([], [gauge])
    row = json.loads(event_to_json(found))
    assert (row["level"], row["gauge_level"]) == (level, gauge_level)
    assert list(row)[:5] == ["schema", "event", "at", "level", "text"]
    assert schemas.faults(row) == []


# ---------------------------------------------------------------- notifications


def diagnosis(headline: str, rule: str = "ray-oom-kill") -> WatchEvent:
    return event("diagnosis", "error", headline, rule=rule, severity="error", headline=headline)


def hang(task: str) -> WatchEvent:
    return event("task-hung", "error", f"Task {task} is hung", task={"id": task}, pid=7)


def written(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def appender(folder: Path, file: Path) -> str:
    """A command that appends its standard input to a file, as one line."""
    script = folder / "take it.py"
    script.write_text(
        f"import sys\nopen({str(file)!r}, 'a').write(sys.stdin.read().strip() + '\\n')"
    )
    return f"{sys.executable} '{script}'"


def test_an_incident_is_notified_once(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    notifier = notify.Notifier(appender(tmp_path, file), event_to_json)
    killed = "Ray killed 1 worker (pid 8) at 2.40 GiB"
    more = "Ray killed 1 worker (pid 9) at 2.60 GiB"
    several = "Ray killed 3 workers at 2.60 GiB"
    rounds = [[diagnosis(killed), hang("a")], [diagnosis(more)], [diagnosis(several)]]
    rounds += [[hang("a"), hang("b")], []]
    assert [notifier(each) for each in rounds] == [[]] * 5
    assert notifier([event("task-slow", "warning", "x"), event("node-joined", "info", "y")]) == []
    notifier.close()
    found = written(file)
    assert [each["text"] for each in found] == [killed, "Task a is hung", "Task b is hung"]
    assert {each["schema"] for each in found} == {"raydoctor/watch/1"}


def test_an_incident_of_a_new_session_is_notified_again(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    notifier = notify.Notifier(appender(tmp_path, file), event_to_json)
    notifier([diagnosis("Ray killed 1 worker")])
    notifier([event("cluster-new", "info", "A new session"), diagnosis("Ray killed 1 worker")])
    notifier.close()
    assert len(written(file)) == 2


def test_a_command_that_never_ends_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_COMMAND_S", 0.5)
    found = notify.receiver(f"sh -c 'sleep 60 & echo $! > {tmp_path}/pid; wait'")
    assert "was ended" in found.send("{}")
    until(lambda: not _runs(tmp_path))
    found.end()


def test_a_killed_watch_leaves_no_command(tmp_path: Path) -> None:
    code = "import sys; from raydoctor.watch import notify; notify.receiver(sys.argv[1]).send('')"
    command = f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60'"
    with subprocess.Popen(
        [sys.executable, "-c", code, command], env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ) as watch:
        until(lambda: _runs(tmp_path))
        watch.kill()
    until(lambda: not _runs(tmp_path))


def test_the_end_of_a_watch_ends_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_END_S", 0.1)
    command = f"sh -c 'sleep 60 & echo $! > {tmp_path}/pid; wait'"
    notifier = notify.Notifier(command, event_to_json)
    notifier([hang("a")])
    until(lambda: _runs(tmp_path))
    notifier.close()
    until(lambda: not _runs(tmp_path))


def _runs(folder: Path) -> bool:
    file = folder / "pid"
    text = file.read_text().strip() if file.exists() else ""
    state = Path(f"/proc/{text}/stat")
    return bool(text) and state.exists() and state.read_text().split()[2] != "Z"


def test_a_storm_is_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_MOST", 3)
    monkeypatch.setattr(notify, "_HOUR", 0.5)
    file = tmp_path / "taken"
    notifier = notify.Notifier(appender(tmp_path, file), event_to_json)
    notifier([hang(str(number)) for number in range(10)])
    until(lambda: len(notifier._sent) == 3 and len(written(file)) == 3)
    until(lambda: _is_past(notifier))
    notifier([hang("later")])
    notifier.close()
    assert [each.get("left_out") for each in written(file)] == [None, None, None, 7]


def _is_past(notifier: notify.Notifier) -> bool:
    import time

    return time.monotonic() - notifier._sent[-1] > notify._HOUR


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (f"{sys.executable} -c 'raise SystemExit(3)'", "failed with exit code 3"),
        ("/nonexistent/program x", "No such file"),
    ],
)
def test_a_receiver_that_fails_is_one_event(command: str, problem: str) -> None:
    notifier = notify.Notifier(command, event_to_json)
    found: list[WatchEvent] = []
    for number in range(5):
        found += notifier([hang(str(number))])
    notifier.close()
    found += notifier([])
    (only,) = found
    assert (only.event, only.level) == ("notify-failed", "warning")
    assert problem in only.text


def test_hostile_text_stays_in_one_line_of_json_whatever_receives_it(tmp_path: Path) -> None:
    """The command's own words never contain the text: it is on standard input alone."""
    program = "import sys; print(len(sys.argv), sys.stdin.read(), file=open(sys.argv[1], 'a'))"
    taken = tmp_path / "taken"
    found = notify.receiver(shlex.join([sys.executable, "-c", program, str(taken)]))
    for text in CORPUS:
        line = event_to_json(event("hang", "error", text, task=text))
        assert line.endswith("}\n")
        assert line[:-1].isascii()
        assert line[:-1].isprintable(), repr(text)
        assert json.loads(line)["text"] == one_line(text)
    texts = CORPUS[::25]
    for text in texts:
        assert found.send(event_to_json(event("hang", "error", text)).strip()) == ""
    found.end()
    for text, line in zip(texts, taken.read_text().splitlines(), strict=True):
        count, _, document = line.partition(" ")
        assert (count, json.loads(document)["text"]) == ("2", one_line(text))


def test_a_command_runs_without_a_shell(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    notifier = notify.Notifier(f"{sys.executable} -c pass ; touch {mark}", event_to_json)
    notifier([hang("$(touch x)")])
    notifier.close()
    assert not mark.exists()


class _Hook(BaseHTTPRequestHandler):
    taken: list[tuple[str, dict[str, Any]]]
    code: int

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, json.loads(body)))
        self.send_response(self.code)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("code", [200, 302, 500])
def test_a_webhook(code: int) -> None:
    handler = type("Hook", (_Hook,), {"taken": [], "code": code})
    with HTTPServer(("127.0.0.1", 0), handler) as hook:
        thread = threading.Thread(target=hook.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{hook.server_address[1]}/services/SECRET"
        notifier = notify.Notifier(url, event_to_json)
        notifier([hang("a")])
        notifier.close()
        hook.shutdown()
        thread.join()
    ((path, document),) = handler.taken
    assert (path, document["event"]) == ("/services/SECRET", "task-hung")
    problems = [each.text for each in notifier([])]
    assert problems == [] if code == 200 else f"HTTP {code}" in problems[0]
    assert "SECRET" not in str(problems)


def test_a_webhook_that_replies_byte_by_byte_does_not_hold_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "_POST_S", 0.5)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            link, _ = listener.accept()
            with link, suppress(OSError):
                link.recv(65536)
                link.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not is_over.wait(0.05):
                    link.sendall(b"a")

        threading.Thread(target=drip, daemon=True).start()
        webhook = notify.receiver(f"http://127.0.0.1:{listener.getsockname()[1]}/path")
        try:
            assert webhook.send("{}") == "127.0.0.1 did not reply within 0.5 s"
            assert webhook.send("{}") == "127.0.0.1 has not replied to the last notification yet"
        finally:
            is_over.set()


def test_a_server_that_does_not_speak_http_is_a_problem_and_no_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                link, _ = listener.accept()
                with link:
                    link.recv(9_999)
                    link.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        found = notify.receiver(f"http://127.0.0.1:{listener.getsockname()[1]}/SECRET")
        assert [found.send("{}") for _ in range(2)] == ["127.0.0.1: BadStatusLine"] * 2
        thread.join()


UNUSABLE = [
    *("", "'unclosed", "https://", "http://[x/y", "http://127.0.0.1:x/y", "http://h:99999/"),
    *("https://u:SECRET@hooks.example/x", "https://hooks.example/SECRET x", "http://h/\u00e9"),
]


@pytest.mark.parametrize("target", UNUSABLE)
def test_a_receiver_that_cannot_be_is_refused(target: str) -> None:
    with pytest.raises(RaydoctorError) as refused:
        notify.receiver(target)
    assert "SECRET" not in f"{refused.value.message}{refused.value.hint}"


# ---------------------------------------------------------------- log silence


@pytest.fixture(name="logs")
def _logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-a-1.out").write_text("step 1\n")
    return tmp_path / "logs"


def silence(logs: Path) -> LogSilence:
    found = LogSilence(str(logs.parent), r"step \d+")
    assert found.seconds(100.0) == 0
    return found


def append(file: Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)


def test_silence_lasts_until_a_line_matches(logs: Path) -> None:
    found = silence(logs)
    append(logs / "worker-a-1.out", "loss 0.1\n")
    append(logs / "raylet.out", "step 7\n")  # not the job's output
    assert found.seconds(160.0) == 60
    append(logs / "worker-a-1.out", "step 2\n")
    assert found.seconds(170.0) == 0
    assert found.seconds(180.0) == 10


def test_a_line_that_is_written_in_two_parts_matches(logs: Path) -> None:
    found = silence(logs)
    append(logs / "worker-a-1.out", "ste")
    assert found.seconds(110.0) == 10
    append(logs / "worker-a-1.out", "p 2\n")
    assert found.seconds(120.0) == 0


def test_a_new_file_is_read_from_its_beginning(logs: Path) -> None:
    found = silence(logs)
    append(logs / "job-driver-x.log", "step 3\n")
    assert found.seconds(110.0) == 0


def test_a_rotated_file_and_an_endless_line(logs: Path) -> None:
    found = silence(logs)
    append(logs / "worker-a-1.out", "x" * 10_000)
    assert found.seconds(110.0) == 10
    append(logs / "worker-a-1.out", "step 4\n")
    assert found.seconds(120.0) == 0
    (logs / "worker-a-1.out").write_text("")
    assert found.seconds(130.0) == 10
    append(logs / "worker-a-1.out", "step 5\n")
    assert found.seconds(140.0) == 0


def test_what_is_not_read_counts_as_a_match(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydoctor.observe.watching.silence._MOST", 100)
    found = silence(logs)
    append(logs / "worker-a-1.out", "y\n" * 100)
    assert found.seconds(110.0) == 0
    append(logs / "worker-a-1.out", "y\n")
    assert found.seconds(120.0) == 10


def test_links_and_pipes_are_not_read(logs: Path) -> None:
    found = silence(logs)
    (logs.parent / "other").write_text("step 9\n")
    (logs / "worker-b-2.out").symlink_to(logs.parent / "other")
    os.mkfifo(logs / "worker-c-3.out")
    assert found.seconds(110.0) == 10


def test_no_line_stops_the_watch(logs: Path) -> None:
    found = LogSilence(str(logs.parent), r"(\w+ ?)*: step")
    assert found.seconds(100.0) == 0
    append(logs / "worker-a-1.out", "a" * 100_000 + "\n")  # for ever with Python's `re`
    assert found.seconds(110.0) == 10


def test_bytes_of_any_kind_are_searched(logs: Path) -> None:
    found = silence(logs)
    with (logs / "worker-a-1.out").open("ab") as stream:
        stream.write(b"\0\xff\n\xfe step 3\r\n")
    assert found.seconds(110.0) == 0


def test_a_search_that_fails_counts_as_a_match(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = silence(logs)
    append(logs / "worker-a-1.out", "loss 1\n")
    monkeypatch.setattr("raydoctor.read.prefilter.find_rg", lambda: "/nonexistent/rg")
    assert found.seconds(110.0) == 0


@pytest.mark.parametrize("wrong", ["(", "step(?=x)", "a\nb"])
def test_a_wrong_pattern_is_refused(wrong: str) -> None:
    assert log_silence.check(wrong)
    assert log_silence.check(r"-step \d+") == ""
