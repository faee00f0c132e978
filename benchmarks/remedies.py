"""Programs that break, with the remedy that raydoctor prints for each, run again: does it end well?

    python -m benchmarks.remedies                       # every kind: some 30 minutes on two cores
    python -m benchmarks.remedies oom-tasks-memory …    # some kinds
    python -m benchmarks.remedies --show infeasible-gpu # with the report's remedies

Each kind is a program of `broken_programs.py`. `raydoctor run` runs and diagnoses it. The kind's function
then changes the program with a step of the report, as a user who pastes it would, and fills in only what the
step leaves open (a folder, an argument). A kind ends well if the changed program exits with 0. *Missing* are
kinds whose report does not print the step. Kinds of Serve need `ray[serve]`; those of memory need 6 GB.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.broken_programs import PROGRAMS
from raydoctor.demo import cluster, machine

ROOT = Path(__file__).parent.parent


class MissingError(Exception):
    """The report does not print such a step."""


@dataclass
class Trial:
    """A program, its environment, and the report on it."""

    text: str
    environment: dict[str, str] = field(default_factory=dict)
    files: int = 0
    """The hard limit of open files; 0 for the machine's own."""
    report: dict[str, Any] = field(default_factory=dict)

    def step(self, rule: str, *words: str) -> str:
        """The first step of this rule's remedies that has all these words."""
        steps = (
            step
            for d in self.report.get("diagnoses", ())
            if d["rule"] == rule
            for remedy in d["remedies"]
            for step in remedy["steps"]
        )
        for step in steps:
            if all(word in step for word in words):
                return str(step)
        raise MissingError(f"{rule}: no step with {' and '.join(words)}")

    def decorate(self, name: str, step: str) -> None:
        """Merge the options of `@ray.remote(...)` into the decorator of a function or class."""
        self._merge(
            rf"@(?:ray\.remote|serve\.deployment)(?:\(.*\))?(?=\n(?:def|class) {name}\b)", "@", step
        )

    def init(self, step: str) -> None:
        """Merge the arguments of `ray.init(...)` into the program's."""
        self._merge(r"ray\.init\(.*\)(?=\n)", "", step)

    def _merge(self, place: str, sign: str, step: str) -> None:
        found = re.search(place, self.text)
        assert found, f"{place} is not in the program"
        call, new = _call(found[0].lstrip("@")), _call(step.lstrip("@"))
        taken = {keyword.arg for keyword in new.keywords}
        call.keywords = [k for k in call.keywords if k.arg not in taken] + new.keywords
        merged = f"{sign}{ast.unparse(call)}"
        self.text = self.text[: found.start()] + merged + self.text[found.end() :]

    def swap(self, old: str, new: str) -> None:
        """Replace a part of the program."""
        assert old in self.text, f"{old!r} is not in the program"
        self.text = self.text.replace(old, new)

    def export(self, step: str) -> None:
        """`export NAME=VALUE` or `unset NAME`, without a command after it."""
        words = _code(step).partition(";")[0].split()
        if words[0] == "unset":
            self.environment.pop(words[1], None)
        else:
            self.environment.update(word.split("=", 1) for word in words[1:])


def _code(step: str) -> str:
    """A step without its comment."""
    return step.partition("   #")[0].strip()


def _call(text: str) -> ast.Call:
    made = ast.parse(_code(text)).body[0]
    assert isinstance(made, ast.Expr)
    value = made.value
    return value if isinstance(value, ast.Call) else ast.Call(value, [], [])


class Kind(NamedTuple):
    """How the step of a report is applied."""

    apply: Callable[[Trial], None]
    seconds: int = 30
    """Time limit of the program that breaks, if it hangs."""
    prepare: Callable[[Trial], None] = lambda trial: None


def _threshold(margin: int) -> Callable[[Trial], None]:
    """Ray kills when this many MiB more than now are in use."""

    def prepare(trial: Trial) -> None:
        memory = machine.memory()
        assert memory is not None
        share = (memory.used + (margin << 20)) / memory.total
        trial.environment["RAY_memory_usage_threshold"] = f"{share:.4f}"
        trial.environment["RAY_memory_monitor_refresh_ms"] = "100"

    return prepare


def _decorated(rule: str, name: str, *words: str) -> Callable[[Trial], None]:
    return lambda t: t.decorate(name, t.step(rule, "@", *words))


def _swapped(rule: str, old: str, *words: str) -> Callable[[Trial], None]:
    return lambda t: t.swap(old, _code(t.step(rule, *words)))


def _made_without(t: Trial) -> None:
    made = _code(t.step("nested-get-deadlock", "Planner.options(num_cpus=0)"))
    t.swap("Planner.remote()", made.replace("(...)", "()"))


def _fewer(actors: int) -> Callable[[Trial], None]:
    old = f"actors = [Simulator.remote() for _ in range({actors})]"
    return _swapped("cluster-starved", old, "actors = [")


def _looser(strategy: str) -> Callable[[Trial], None]:
    old = f'placement_group(bundles, strategy="{strategy}")'
    return _swapped("placement-group-pending", old, "placement_group(bundles")


def _bundles(old: str) -> Callable[[Trial], None]:
    return _swapped("placement-group-pending", f"placement_group({old})", "placement_group([")


def _given(rule: str) -> Callable[[Trial], None]:
    return lambda t: t.init(t.step(rule, "ray.init("))


def _exported(rule: str, *words: str) -> Callable[[Trial], None]:
    return lambda t: t.export(t.step(rule, *words))


def _decoder(t: Trial) -> None:
    step = _code(t.step("actor-restart-loop", "max_task_retries=0", "handle."))
    t.swap(
        "decoder.decode.remote(frame)",
        step.replace("handle", "decoder").replace("ARGUMENTS", "frame"),
    )


def _limited_parents(t: Trial) -> None:
    remedy = next(
        r
        for d in t.report["diagnoses"]
        for r in d["remedies"]
        if any("ray.wait(running)" in s for s in r["steps"])
    )
    loop = "\n".join(step.partition("   #")[0] for step in remedy["steps"])
    loop = loop.replace("done, running", "some, running")
    t.swap(
        "running = [whole.remote(case) for case in cases]\ndone = []\ndone += running",
        f"ended = []\n{loop}\n    ended += some\ndone = ended + running",
    )


def _returned(t: Trial) -> None:
    assert t.step("nested-get-deadlock", "references, not ray.get")
    t.swap("    return ray.get(part.remote(case))", "    return part.remote(case)")
    t.swap(
        "ray.get([whole.remote(case) for case in (1, 2, 3)])",
        "ray.get(ray.get([whole.remote(case) for case in (1, 2, 3)]))",
    )


def _without_resource(t: Trial) -> None:
    step = _code(t.step("nested-get-deadlock", "only its children request it"))
    t.swap('@ray.remote(resources={"disk": 1})\ndef whole', f"{step}\ndef whole")


def _direct(t: Trial) -> None:
    assert t.step("actor-deadlock", "self.look_up(...)")
    t.swap("ray.get(me.look_up.remote())", "self.look_up()")


def _more_threads(t: Trial) -> None:
    step = _code(t.step("actor-deadlock", "max_concurrency="))
    name = step.partition(".")[0]
    t.swap(f"{name}.remote()", step.replace("...", ""))


def _awaiting(t: Trial) -> None:
    assert t.step("async-actor-blocked", "await asyncio.sleep")
    t.swap(
        "            time.sleep(300)",
        "            import asyncio\n            await asyncio.sleep(1)",
    )


def _namespace(t: Trial) -> None:
    step = _code(t.step("actor-name-not-found", "ray.get_actor(", "namespace="))
    t.swap('ray.get_actor("store", namespace="serving")', step.replace('"NAMESPACE"', '"training"'))


def _created(t: Trial) -> None:
    step = _code(t.step("actor-name-not-found", "get_if_exists=True"))
    made = step.replace("Actor.", "Store.").replace("ARGUMENTS", "")
    if 'ray.get_actor("store")\nassert' in t.text:
        t.swap('store = ray.get_actor("store")', f"store = {made}")
    else:
        t.swap('Store.options(name="store").remote()', made)


def _detached(t: Trial) -> None:
    step = _code(t.step("actor-owner-died", "detached"))
    t.swap("self.store = Store.remote()", f"self.store = {step.replace('ARGUMENTS', '')}")


def _by_value(t: Trial) -> None:
    assert t.step("owner-died", "return value")
    t.swap("return ray.put(value)", "return value")
    t.swap(
        "table = ray.get(loader.load.remote())", "table = loader.load.remote()\nray.wait([table])"
    )


def _killed_later(t: Trial) -> None:
    assert t.step("actor-killed", "ray.get(CALLS)")
    t.swap(
        "ray.kill(worker)\nassert ray.get(pending) == [1]",
        "assert ray.get(pending) == [1]\nray.kill(worker)",
    )


def _put_once(t: Trial) -> None:
    assert t.step("large-closure", "table = ray.put(table)")
    t.swap("def train(i):", "def train(i, table):")
    t.swap("train.remote(1)", "train.remote(1, table)")
    t.swap("assert ", "table = ray.put(table)\nassert ")


def _own_lock(t: Trial) -> None:
    assert t.step("not-serializable", "created in the worker")
    t.swap("def count(n):", "def count(n):\n    lock = threading.Lock()")


def _own_module(t: Trial) -> None:
    step = t.step("task-exception", "working_dir", "FOLDER")
    t.init(step.replace("FOLDER", '"lib"'))


def _variable(t: Trial) -> None:
    step = t.step("task-exception", "env_vars", "STORE_URL")
    t.init(step.replace("VALUE", '"memory://"'))


def _folder_sent(t: Trial) -> None:
    t.init(t.step("task-exception", "working_dir").replace("FOLDER", '"input"'))


def _before(line: str, *words: str) -> Callable[[Trial], None]:
    """The step goes into the program above this line."""

    def apply(t: Trial) -> None:
        indent = line[: len(line) - len(line.lstrip())]
        t.swap(line, f"{indent}{_code(t.step('task-exception', *words))}\n{line}")

    return apply


def _fetched(t: Trial) -> None:
    step = _code(t.step("task-exception", "values = ray.get("))
    t.swap(
        "    return sum(parts)",
        f"    {step.replace('references', 'parts')}\n    return sum(values)",
    )


def _remote_call(t: Trial) -> None:
    step = _code(t.step("job-failed", "double.remote("))
    t.swap("result = double(4)", step.replace("ARGUMENTS", "4"))


def _in_init(t: Trial) -> None:
    step = _code(t.step("task-exception", "signal.signal(", "__init__"))
    t.swap("        signal.signal(signal.SIGUSR1, self.stop)\n", "")
    line = step.replace("number", "signal.SIGUSR1").replace("handler", "self.stop")
    t.swap("        self.stops = False\n", f"        self.stops = False\n        {line}\n")


def _constant_passed(t: Trial) -> None:
    step = _code(t.step("task-exception", "places.BASE"))
    t.swap("def path(name):", "def path(name, base):")
    t.swap("    return places.BASE", "    return base")
    t.swap('path.remote("rows")', step.replace("task.", "path.").replace("ARGUMENTS", '"rows"'))


def _package(t: Trial) -> None:
    step = t.step("task-exception", '"pip"', "PACKAGE")
    t.init(step.replace("PACKAGE", '"cowsay"'))


def _version(t: Trial) -> None:
    step = _code(t.step("runtime-env-failed", "runtime_env={"))
    t.swap('{"pip": ["six==99.0.0"]}', step.removeprefix("runtime_env="))


def _excluded(t: Trial) -> None:
    step = t.step("package-too-large", "excludes")
    found = re.search(r'"excludes": \[[^\]]*\]', step)
    assert found, step
    t.swap('{"working_dir": "project"}', f'{{"working_dir": "project", {found[0]}}}')


def _more_files(t: Trial) -> None:
    asked = int(_code(t.step("task-exception", "ulimit -n")).removeprefix("ulimit -n "))
    t.files = min(asked, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _raising(t: Trial) -> None:
    t.step("worker-exit-code", "raise RuntimeError")
    t.swap("sys.exit(3)", 'raise RuntimeError("cannot read .csv")')
    t.swap(
        'assert ray.get(convert.remote("a.csv")) == "a.csv"',
        "try:\n    ray.get(convert.remote('a.csv'))\n"
        "except RuntimeError as error:\n    assert '.csv' in str(error)",
    )


def _waiting_calls(t: Trial) -> None:
    remedy = next(
        r
        for d in t.report["diagnoses"]
        for r in d["remedies"]
        if any("ray.wait(pending)" in s for s in r["steps"])
    )
    lines = (
        "\n".join(remedy["steps"])
        .replace("actor.", "sink.")
        .replace("done, pending", "some, pending")
    )
    t.swap(
        "results = [sink.write.remote(item) for item in items]",
        lines
        + "\n    results = globals().setdefault('results', [])\n    results.append(pending[-1])",
    )


def _one_reference(t: Trial) -> None:
    assert t.step("grpc-message-too-large", "ref = ray.put(parts)")
    t.swap("def join(*parts):", "def join(parts):")
    t.swap("join.remote(*parts)", "join.remote(ray.put(parts))")


def _setup_time(t: Trial) -> None:
    found = re.search(
        r'"setup_timeout_seconds": (\d+)', t.step("runtime-env-timeout", "setup_timeout_seconds")
    )
    assert found
    t.swap('"setup_timeout_seconds": 1', found[0])


def _no_address(t: Trial) -> None:
    rule = next((d["rule"] for d in t.report["diagnoses"]), "")
    t.export(t.step(rule, "unset RAY_ADDRESS"))


def _spill_elsewhere(t: Trial) -> None:
    step = t.step("spill-failed", "ray.init(object_spilling_directory=")
    t.init(step.replace("/big_disk/spill", "/tmp/spilled-elsewhere"))


def _with(name: str, value: str) -> Callable[[Trial], None]:
    return lambda t: t.environment.update({name: value})


def _few_files(t: Trial) -> None:
    t.files = 1024


KINDS: dict[str, Kind] = {
    "oom-tasks-memory": Kind(_decorated("ray-oom-kill", "train", "memory="), 60, _threshold(3900)),
    "oom-tasks-cpus": Kind(_decorated("ray-oom-kill", "train", "num_cpus="), 60, _threshold(3900)),
    "oom-threshold": Kind(_exported("ray-oom-kill", "unset RAY_memory"), 60, _threshold(1700)),
    "oom-loop": Kind(_exported("oom-kill-loop", "RAY_task_oom_retries"), 60, _threshold(1700)),
    "actor-restart-loop": Kind(_decoder, 45),
    "infeasible-cpus": Kind(_decorated("infeasible-request", "train", "num_cpus=")),
    "infeasible-add": Kind(_given("infeasible-request")),
    "infeasible-gpu": Kind(_decorated("infeasible-request", "infer", "num_gpus=0")),
    "infeasible-memory": Kind(_decorated("infeasible-request", "load", "memory=")),
    "infeasible-name": Kind(_swapped("infeasible-request", 'resources={"acelerator": 1}', "resources={")),
    "infeasible-label": Kind(_decorated("infeasible-request", "infer", "label_selector=")),
    "infeasible-actor-cpus": Kind(_decorated("infeasible-request", "Trainer", "num_cpus=")),
    "infeasible-fail-early": Kind(_exported("infeasible-request", "early_exit=true"), 40),
    "starved-fewer": Kind(_fewer(3)),
    "starved-less": Kind(_decorated("cluster-starved", "Simulator", "num_cpus=")),
    "starved-add": Kind(_given("cluster-starved")),
    "starved-more-actors": Kind(_fewer(5)),
    "starved-more-less": Kind(_decorated("cluster-starved", "Simulator", "num_cpus=")),
    "starved-more-add": Kind(_given("cluster-starved")),
    "starved-resource": Kind(_decorated("cluster-starved", "Reader", "resources=")),
    "group-strict-spread": Kind(_looser("STRICT_SPREAD")),
    "group-strict-pack": Kind(_looser("STRICT_PACK")),
    "group-too-large": Kind(_bundles('[{"CPU": 2}] * 3')),
    "group-bundle-too-large": Kind(_bundles('[{"CPU": 8}]')),
    "group-held": Kind(_bundles('[{"CPU": 1}] * 2')),
    "group-held-add": Kind(_given("placement-group-pending")),
    "nested-get-fewer": Kind(_limited_parents, 45),
    "nested-get-return": Kind(_returned, 45),
    "nested-get-without": Kind(_without_resource, 45),
    "nested-get-actors": Kind(_made_without, 45),
    "actor-deadlock-threads": Kind(_more_threads, 60),
    "actor-self-call": Kind(_direct, 60),
    "async-blocked": Kind(_awaiting, 120),
    "name-in-other-namespace": Kind(_namespace),
    "name-never-created": Kind(_created),
    "actor-owner-died": Kind(_detached),
    "owner-died-put": Kind(_by_value),
    "actor-handle-dropped": Kind(_created),
    "actor-killed": Kind(_killed_later),
    "large-closure": Kind(_put_once),
    "not-serializable-lock": Kind(_own_lock),
    "module-of-the-user": Kind(_own_module),
    "environment-after-init": Kind(_variable),
    "relative-path": Kind(_folder_sent),
    "read-only-array": Kind(_before("    array *= 2", "array.copy()")),
    "reference-in-list": Kind(_fetched),
    "direct-call": Kind(_remote_call),
    "more-returned": Kind(_decorated("task-exception", "cut", "num_returns=3")),
    "signal-in-method": Kind(_in_init),
    "module-constant": Kind(_constant_passed),
    "alarm-left-armed": Kind(_decorated("task-exception", "quick", "max_calls=1")),
    "module-missing": Kind(_package),
    "pip-no-such-version": Kind(_version, 90),
    "package-too-large": Kind(_excluded, 90),
    "files-limit": Kind(_more_files, prepare=_few_files),
    "passing-failure": Kind(_decorated("task-exception", "download", "retry_exceptions=")),
    "worker-sys-exit": Kind(_raising),
    "spill-no-directory": Kind(_spill_elsewhere),
    "pending-calls": Kind(_waiting_calls),
    "message-too-large": Kind(_one_reference, prepare=_with("RAY_max_grpc_message_size", "10000000")),
    "address-of-nothing": Kind(_no_address, 60, _with("RAY_ADDRESS", "127.0.0.1:1")),
    "serve-replicas": Kind(_decorated("infeasible-request", "Generator", "num_cpus"), 60),
    "serve-many-replicas": Kind(_decorated("serve-replica-pending", "Generator", "num_replicas="), 120),
    "setup-timeout": Kind(_setup_time, 60),
}  # fmt: skip
SAME = {
    "oom-tasks-cpus": "oom-tasks-memory",
    "infeasible-add": "infeasible-cpus",
    "starved-less": "starved-fewer",
    "starved-add": "starved-fewer",
    "starved-more-less": "starved-more-actors",
    "starved-more-add": "starved-more-actors",
    "group-held-add": "group-held",
    "nested-get-without": "nested-get-return",
}
"""Kinds that try another remedy of the same report."""


STARTS = 3
"""How often a program is run whose Ray does not start in time, as on a busy machine."""


def run(trial: Trial, seconds: int) -> int:
    """Run the program under `raydoctor run`, and keep the report; its exit code."""
    for _ in range(STARTS):
        code = _run(trial, seconds)
        if not code or "timed out during startup" not in trial.report["log"]:
            break
    return code


def _run(trial: Trial, seconds: int) -> int:
    with cluster.throw_away() as ray:
        (app := ray.folder / "app").mkdir()
        (app / "app.py").write_text(trial.text)
        report = ray.folder / "report.json"
        limit = f"ulimit -n {trial.files} && " if trial.files else ""
        command = [
            *("bash", "-c", f'{limit}exec "$@"', "run", sys.executable, "-m", "raydoctor", "run"),
            *("--timeout", str(seconds), "--format", "json", "-o", str(report)),
            *("--", sys.executable, "app.py"),
        ]
        bin_ = Path(sys.executable).parent
        environment = {
            **ray.environment,
            "HOME": str(ray.folder),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{bin_}:{os.environ['PATH']}",
            **trial.environment,
        }
        with (app / "log").open("wb") as log:
            code = subprocess.run(
                command, cwd=app, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
        if code:
            trial.report = json.loads(report.read_text()) if report.exists() else {}
            trial.report["log"] = (app / "log").read_text(errors="replace")[-1500:]
        return code


def show(report: dict[str, Any]) -> None:
    """The headlines and remedies of a report."""
    for diagnosis in report.get("diagnoses", ()):
        print(f"    {diagnosis['severity']} {diagnosis['rule']}: {diagnosis['headline']}")
        for remedy in diagnosis["remedies"]:
            print(f"      - {remedy['title']}")
            print("".join(f"          {step}\n" for step in remedy["steps"]), end="")


def verdict(name: str, reports: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """`ended well`, or why it did not."""
    kind, source = KINDS[name], SAME.get(name, name)
    trial = Trial(PROGRAMS[source])
    kind.prepare(trial)
    if source in reports:
        trial.report = reports[source]
    elif run(trial, int(kind.seconds * options.patience)) == 0:
        return "did not break"
    reports[source] = trial.report
    if options.show:
        show(trial.report)
    try:
        kind.apply(trial)
    except (MissingError, StopIteration) as error:
        return f"missing ({error or 'no such step'})"
    code = run(trial, int((kind.seconds + 60) * options.patience))
    if code and options.show:
        print(trial.text, trial.report["log"])
    return "ended well" if code == 0 else f"exit code {code}"


def main() -> None:
    """Try the named kinds, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND")
    parser.add_argument("--show", action="store_true", help="print the remedies")
    parser.add_argument(
        "--patience", type=float, default=1, help="factor of all time limits, for busy machines"
    )
    options = parser.parse_args()
    reports: dict[str, dict[str, Any]] = {}
    well = 0
    for name in options.kinds:
        outcome = verdict(name, reports, options)
        well += outcome == "ended well"
        print(f"{name:26} {outcome}", flush=True)
    print(f"{well} of {len(options.kinds)} ended well")


if __name__ == "__main__":
    main()
