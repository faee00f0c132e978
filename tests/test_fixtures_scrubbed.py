"""No fixture gives away the machine it was made on, and the fixtures stay small."""

from __future__ import annotations

import importlib
import json
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import all_captures, capture_of

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MAX_BYTES = 15_000_000
BLOCK = 4096
MODULES = ("scrub", "trim", "scenario")
WORKER = "9c7e56b20e92a788680b8e63a739e774a92bcbd3e71ca05ce03bdfaa"

ROOT_HOME = "/" + "root"
SEEDS = {
    "home of root": (
        f'  File "{ROOT_HOME}/lib/x.py", line 3',
        '  File "/home/user/lib/x.py", line 3',
    ),
    "home of a user": ("cwd=/home/alice/job", "cwd=/home/user/job"),
    "package index": (
        "Looking in indexes: http://127.0.0.1:43671/simple",
        "Looking in indexes: https://pypi.example/simple",
    ),
    "credentials": ("https://me:s3cret@host/x", "https://host/x"),
    "bearer": ("Authorization: Bearer " + "aB3-" * 12, "Authorization: Bearer <token>"),
    "token": ('{"auth_token": "' + "f0" * 32 + '"}', '{"auth_token": "<token>"}'),
    "run directory": ("/var/tmp/ray-fixture-ab12_x/tmp", "/home/user/.cache/tmp"),
    "user of a process": ('{"uid":0,"user":"root","rss":1}', '{"uid":1000,"user":"user","rss":1}'),
    "user of a cluster": ('{"user":"root","up":true}', '{"user":"user","up":true}'),
    "disk": ('{"device":"/dev/mapper/vg0-a","free":1}', '{"device":"/dev/sda1","free":1}'),
    "cgroup": (
        "task_memcg=/machine/6a5b/ray-fixture-ab12_x,task=ray::train",
        "task_memcg=/ray-fixture,task=ray::train",
    ),
}

UNTOUCHED = (
    f"[2026-11-21 07:44:05,961 I 13 13] (raylet) worker_pool.cc:564: Started worker_id={WORKER}",
    f"Wrong cluster ID token in request! Expected: {WORKER}, but got: {WORKER}",
    "Killed process 22082 (ray::load) total-vm:4596960kB, anon-rss:2477592kB, UID:0",
    "/home/user/venv/lib/python3.11/site-packages/ray/_private/worker.py",
    "Worker process with pid 182, the token is 0",
    "http://127.0.0.1:8265 and http://10.0.0.2:6379",
)


@pytest.fixture(scope="module", name="runner")
def _runner() -> Iterator[dict[str, ModuleType]]:
    """The modules of the fixtures' generator, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FIXTURES))
        yield {name: importlib.import_module(f"_runner.{name}") for name in MODULES}
        for name in [name for name in sys.modules if name.split(".")[0] == "_runner"]:
            del sys.modules[name]


def _files() -> list[Path]:
    """What a commit could hold: caches of Python and of the tools are not looked at."""
    found = (path for path in FIXTURES.rglob("*") if path.is_file())
    return sorted(path for path in found if not _is_cache(path.relative_to(FIXTURES)))


def _is_cache(path: Path) -> bool:
    return any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)


def test_no_file_gives_the_machine_away(runner: dict[str, ModuleType]) -> None:
    scrub = runner["scrub"]
    secrets = scrub.machine_secrets()
    inside = [p for c in all_captures() if FIXTURES not in c.parents for p in c.rglob("*")]
    assert inside, "what is kept as an archive is looked at, too"
    leaks = [
        f"{path.relative_to(path.parents[-1])}: {leak}"
        for path in (*_files(), *(p for p in inside if p.is_file()))
        for leak in scrub.leaks(path.read_bytes().decode("utf-8", "surrogateescape"), secrets)
    ]
    assert leaks == []


def test_fixtures_stay_small() -> None:
    blocks = sum(-(-path.stat().st_size // BLOCK) for path in _files())
    assert blocks * BLOCK < MAX_BYTES, "as `du` counts"


@pytest.mark.parametrize("what", SEEDS)
def test_scrubber_finds_and_replaces(runner: dict[str, ModuleType], what: str) -> None:
    scrub = runner["scrub"]
    seeded, clean = SEEDS[what]
    assert list(scrub.leaks(seeded, scrub.GENERAL))
    assert scrub.scrub(seeded, scrub.GENERAL) == clean
    assert list(scrub.leaks(clean, scrub.GENERAL)) == []


@pytest.mark.parametrize(
    ("host", "text", "clean"),
    [
        ("build-7", "Linux build-7 kernel:", "Linux ray-node kernel:"),
        ("build-7", "my-build-7.py", "my-build-7.py"),
        ("train", '{"host_name":"train","label":"x"}', '{"host_name":"ray-node","label":"x"}'),
        ("train", "(train pid=7) ray::train", "(train pid=7) ray::train"),
    ],
)
def test_scrubber_knows_the_host(
    runner: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    text: str,
    clean: str,
) -> None:
    scrub = runner["scrub"]
    monkeypatch.setattr("socket.gethostname", lambda: host)
    monkeypatch.setattr(platform, "node", lambda: host)
    assert scrub.scrub(text, scrub.machine_secrets.__wrapped__()) == clean


def test_scrubber_knows_this_machine(
    runner: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    scrub = runner["scrub"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.corp.test/pypi/simple/")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.corp.test:3128")
    monkeypatch.setattr("socket.gethostname", lambda: "build-7")
    monkeypatch.setattr(platform, "release", lambda: "6.1.99-corp")
    secrets = scrub.machine_secrets.__wrapped__()
    text = (
        '{"host_name":"build-7"} Linux build-7 6.1.99-corp\n'
        f"{Path.home()}/x.py {sys.prefix}/lib/python {FIXTURES}\n"
        "Looking in indexes: https://mirror.corp.test/pypi/simple, proxy http://proxy.corp.test:3128\n"
    )
    scrubbed = scrub.scrub(text, secrets)
    for secret in ("build-7", "corp", str(Path.home()) + "/", sys.prefix + "/"):
        assert secret not in scrubbed.replace("/home/user/", "")
    assert list(scrub.leaks(text, secrets))
    assert list(scrub.leaks(scrubbed, secrets)) == []


@pytest.mark.parametrize("line", UNTOUCHED)
def test_scrubber_leaves_ray_alone(runner: dict[str, ModuleType], line: str) -> None:
    scrub = runner["scrub"]
    assert scrub.scrub(line, scrub.GENERAL) == line


def test_trimming_keeps_whole_records_in_order(runner: dict[str, ModuleType]) -> None:
    dump = "[2026-11-21 07:44:0{},000 I 1 1] (raylet) node_manager.cc:1: Event stats:\nx = {}\n"
    event = "[2026-11-21 07:44:09,000 E 1 1] (raylet) main.cc:2: Killing worker\nall of it\n"
    text = dump.format(1, 1) + dump.format(2, 2) + event + dump.format(3, 3)
    trim, path = runner["trim"], PurePosixPath("logs/raylet.out")
    trimmed = trim.trim(path, text, trim.Session(is_control=True))
    assert trimmed.text == dump.format(1, 1) + event + dump.format(3, 3)
    assert trimmed.told == ("periodic dumps between the first and the last of a kind",)


def test_trimming_keeps_core_logs_that_tell_something_of_their_own(
    runner: dict[str, ModuleType],
) -> None:
    trim, said = runner["trim"], "[2026-11-21 07:44:09,000 W 1 1] core_worker.cc:1: {}\n"
    names = [f"logs/python-core-worker-{letter * 56}_{7}.log" for letter in "abcd"]
    texts = dict.fromkeys(map(PurePosixPath, names[:3]), said.format("The raylet is gone"))
    texts[PurePosixPath(names[3])] = said.format("The GCS is gone")
    session = trim.session_of(texts)
    kept = [str(path) for path, text in texts.items() if trim.trim(path, text, session).text]
    assert kept == [*names[:2], names[3]]


def test_trimming_keeps_what_a_worker_that_died_had_been_running(
    runner: dict[str, ModuleType],
) -> None:
    trim = runner["trim"]
    other = WORKER[::-1]
    outputs = {
        PurePosixPath(f"logs/worker-{worker}-01000000-7.out"): ":task_name:train\n"
        for worker in (WORKER, other)
    }
    exit_ = f"Reporting worker exit, worker id = {WORKER}, node id = {'a' * 56}\n"
    session = trim.session_of({PurePosixPath("logs/gcs_server.out"): exit_, **outputs})
    kept = [path.name for path, text in outputs.items() if trim.trim(path, text, session).text]
    assert kept == [f"worker-{WORKER}-01000000-7.out"]


def test_trimming_leaves_the_routine_of_healthy_runs(runner: dict[str, ModuleType]) -> None:
    trim = runner["trim"]
    path, event = PurePosixPath("logs/raylet.out"), "[2026-11-21 07:44:09,000 {} 1 1] (raylet) {}\n"
    text = event.format("I", "event.cc:1: Set ray event level to warning")
    text += event.format("W", "store.cc:1: Stats module has shutdown")
    assert trim.trim(path, text, trim.Session(is_control=True)).text == text
    assert trim.trim(path, text).text == text.splitlines(keepends=True)[1]


def test_every_capture_says_how_it_was_made() -> None:
    for description in FIXTURES.glob("*/fixture.toml"):
        text = description.read_text(encoding="utf-8")
        scenario = re.search(r'^scenario = "(.+)"$', text, re.MULTILINE)
        assert scenario, description
        assert (FIXTURES / scenario[1]).exists(), description
        assert (capture_of(description.parent) / "driver.log").exists(), description


LIVE = [capture for capture in all_captures() if (capture / "live").is_dir()]


@pytest.mark.parametrize("capture", LIVE, ids=lambda capture: capture.parent.name)
def test_tables_of_live_captures_are_whole(capture: Path) -> None:
    """One row a line, as they were collected: a diagnosis names the line."""
    for path in sorted((capture / "live").glob("live-*.json")):
        text = path.read_text(encoding="utf-8")
        table = json.loads(text)
        assert f"live-{table['table']}.json" == path.name
        lines = text.splitlines()[1:-1] if table["rows"] else []
        assert [json.loads(line.removesuffix(",")) for line in lines] == table["rows"]
    assert json.loads((capture / "raydoctor.json").read_text())["gaps"]


def test_live_scenarios_keep_away_from_the_kernel_log(
    runner: dict[str, ModuleType], tmp_path: Path
) -> None:
    """It is the machine's, and so are the processes that it names."""
    scenario = runner["scenario"]
    head = "'title': '', 'roots': [], 'start': 'head', 'topology': '1-node', 'live': {}"
    path = tmp_path / "x.py"
    path.write_text(f"SCENARIO = {{{head.format(3)}, 'driver_env': {{'A': 1}}}}")
    read = scenario.read_scenario(path)
    assert (read.live, read.driver_env, read.reaps) == (3, {"A": "1"}, True)
    path.write_text(f"SCENARIO = {{{head.format(True)}, 'kernel_log': True}}")
    with pytest.raises(scenario.ScenarioError):
        scenario.read_scenario(path)
