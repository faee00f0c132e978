"""What runs a cluster's code runs as the user who owns the cluster, never as root."""

from __future__ import annotations

import io
import json
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raydoctor.observe.collector.cluster import Cluster, Token
from raydoctor.observe.nodes import fan_out, nodes, there
from raydoctor.observe.nodes.fan_out import Frame
from raydoctor.observe.processes import as_user
from tests.helpers.waiting import PATIENCE

root = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="needs root"
)
STRANGER, OTHER = 64321, 64322
"""Users of no name."""
FOLDER = "/tmp"
"""Where they may read, whatever pytest's own folder allows."""


def cluster_of(owner: int | None, address: str = "127.0.0.1:1") -> Cluster:
    token = Token("t0k3n", "a test")
    return Cluster(gcs_address=address, owner=owner, token=token, token_mode=True)


REQUEST = {"nodes": ["1" * 56], "seconds": 20.0}


def frames(cluster: Cluster) -> list[Frame]:
    """All that the child reports."""
    reply: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    found = []
    with fan_out.asking(cluster, REQUEST, 20.0, reply.put):
        while not found or "problem" not in found[-1].head:
            found.append(reply.get(timeout=30))
    return found


@pytest.fixture(name="interpreter")
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the place of Python: prints who runs it, how, and what it was given."""
    path = Path(FOLDER, f"interpreter-{os.getpid()}")
    path.write_text(
        "#!/bin/sh\n"
        "read -r request\n"
        'echo "{\\"nodes\\": [], \\"ids\\": \\"$(id -u) $(id -g) $(id -G)\\", '
        '\\"grep\\": \\"$(grep ^Uid /proc/self/status | tr "\\t" " ")\\", '
        '\\"folder\\": \\"$(pwd)\\", \\"umask\\": \\"$(umask)\\", \\"argv\\": \\"$*\\"}"\n'
        'echo "{\\"node\\": \\"environment\\", \\"bytes\\": $(env | wc -c)}"\n'
        "env\n"
    )  # fmt: skip
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    yield path
    path.unlink()


@root
def test_as_root_the_driver_is_the_cluster_s_user(
    interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del interpreter
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.setenv("PYTHONPATH", "/home/eve")
    monkeypatch.setenv("RAY_USE_TLS", "0")
    monkeypatch.setenv("LANG", "C")
    who, environment, _ = frames(cluster_of(STRANGER))
    reply = who.head
    assert reply["ids"] == f"{STRANGER} {STRANGER} {STRANGER}"
    assert reply["grep"].split() == ["Uid:", *[str(STRANGER)] * 4]
    assert (reply["folder"], reply["umask"]) == ("/", "0077")
    assert reply["argv"] == f"-Es {fan_out._PROGRAM}"
    given = dict(line.split("=", 1) for line in environment.data.decode().splitlines())
    assert {
        "HOME": "/",
        "USER": str(STRANGER),
        "RAY_USE_TLS": "0",
        "LANG": "C",
    }.items() <= given.items()
    assert not {"AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "RAY_AUTH_TOKEN", "SSH_AUTH_SOCK"} & set(
        given
    )


@root
def test_as_root_nothing_is_started_for_a_cluster_of_an_unknown_user(
    interpreter: Path,
) -> None:
    del interpreter
    for nowhere in ("127.0.0.1:1", "192.0.2.1:6379", "no-such-host.invalid:6379"):
        (unknown,) = frames(cluster_of(None, nowhere))
        assert "root runs no code of unknown users" in unknown.head["problem"]


@root
def test_a_gcs_of_which_no_process_is_seen_belongs_to_the_user_who_listens() -> None:
    """In a sidecar container the raylet's processes are not seen, but its ports are."""
    code = (
        "import os, socket, sys\nos.setresuid(64321, 64321, 64321)\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\nsys.stdin.read()"
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as theirs,
    ):
        assert theirs.stdout is not None
        port = int(theirs.stdout.readline())
        user = fan_out._user(cluster_of(None, f"127.0.0.1:{port}"))
        assert fan_out._user(cluster_of(None, f"localhost:{own.getsockname()[1]}")) is None
        assert theirs.stdin is not None
        theirs.stdin.close()
    assert user == as_user.find(STRANGER)


@root
def test_a_python_that_the_cluster_s_user_may_not_run_is_reported(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    python = hidden / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        (answer,) = there.ask(cluster_of(STRANGER), {"1" * 56: {}}, "json:dumps", 5.0)
    assert (
        answer.problem
        == f"{python} cannot be run as {STRANGER}, the owner of the cluster: Permission denied"
    )


@root
def test_another_user_s_cluster_gets_no_driver() -> None:
    """Except root's, who may do anything here anyhow; this user's own, and one of which nothing runs here."""
    reply = _as(
        OTHER,
        f"for owner in ({STRANGER}, 0, {OTHER}, None):\n"
        "    print(fan_out._user(Cluster(owner=owner)))\n",
    )
    assert reply == [
        f"it belongs to {STRANGER}, and its code would run as you; run raydoctor as that user",
        *["None"] * 3,
    ]


def _as(uid: int, code: str) -> list[str]:
    """What a Python prints that has become this user once all is imported."""
    begin = (
        "import os, pwd\nfrom raydoctor.observe.nodes import fan_out\n"
        f"from raydoctor.observe.collector.cluster import Cluster\nos.setresuid({uid}, {uid}, {uid})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin + code],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return done.stdout.splitlines()


def test_this_user_s_own_cluster_is_asked_as_always() -> None:
    assert fan_out._user(cluster_of(os.geteuid())) is None


# ------------------------------------------------------------------ what comes back


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"no json\n",
        b"[1]\n",
        b'"text"\n',
        b"[" * 100_000 + b"\n",
        b'{"bytes": -1}\n',
        b'{"bytes": 1e3}\n',
        b'{"bytes": true}\n',
        b'{"bytes": 99999999999}\n',
        b'{"nodes": [1]}\n',
        b'{"nodes": [{"id": 1}]}\n',
        b'{"nodes": {"id": 1}}\n',
    ],
    ids=repr,
)
def test_what_is_no_frame_ends_the_reading(line: bytes) -> None:
    good = b'{"node": "1", "bytes": 3}\nabc'
    found: list[Frame] = []
    with suppress(ValueError, RecursionError):
        found.extend(fan_out._frames(io.BytesIO(good + line + good), 10))
    assert found == [Frame({"node": "1", "bytes": 3}, b"abc")]


def test_no_more_frames_are_read_than_there_are_nodes_for() -> None:
    assert len(list(fan_out._frames(io.BytesIO(b'{"node": "1"}\n' * 100), 4))) == 4


@pytest.mark.parametrize("advice", [nodes._advice, there._hint])
def test_a_node_s_python_is_quoted_where_it_is_to_be_pasted(advice: object) -> None:
    assert callable(advice)
    said = advice({"missing": True, "python": "python; touch /tmp/pasted"})
    assert "'python; touch /tmp/pasted' -m pip install" in said
    assert "/opt/ray/bin/python -m pip" in advice(
        {"missing": True, "python": "/opt/ray/bin/python"}
    )


def test_the_token_is_not_in_the_child_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t0k3n")
    user = as_user.find(STRANGER)
    for environment in (fan_out._environment(), fan_out._environment(user)):
        assert "t0k3n" not in json.dumps(environment)
