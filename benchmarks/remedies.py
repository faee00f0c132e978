"""Programs that break, the remedy that raydoctor prints, and the program again with it."""

from __future__ import annotations
import json, os, subprocess, sys
from pathlib import Path
from benchmarks.broken_programs import PROGRAMS
from raydoctor.demo import cluster, machine


def settings(name):
    memory = machine.memory()
    if name.startswith("oom-tasks"):
        limit = memory.used + (3900 << 20)
    elif name.startswith("oom"):
        limit = memory.used + (1700 << 20)
    else:
        return {"RAY_ADDRESS": "127.0.0.1:1"} if name == "address-of-nothing" else {}
    return {
        "RAY_memory_usage_threshold": f"{limit / memory.total:.4f}",
        "RAY_memory_monitor_refresh_ms": "100",
    }


def main():
    out = Path(os.environ.get("OUT", "/srv/wt/fixes.d/out"))
    out.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PROGRAMS:
        with cluster.throw_away() as run:
            app = run.folder / "app"
            app.mkdir()
            (app / "app.py").write_text(PROGRAMS[name])
            limit = "45" if name.startswith(("oom", "serve", "job", "actor-restart")) else "22"
            cmd = [
                sys.executable,
                "-m",
                "raydoctor",
                "run",
                "--timeout",
                limit,
                "--format",
                "json",
                "-o",
                str(out / f"{name}.json"),
                "--",
                sys.executable,
                "app.py",
            ]
            env = {
                **run.environment,
                "PYTHONPATH": os.environ.get("RAYDOCTOR", os.getcwd()),
                "HOME": str(run.folder),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **settings(name),
            }
            with (out / f"{name}.txt").open("wb") as log:
                rc = subprocess.run(
                    cmd,
                    cwd=app,
                    env=env,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                ).returncode
        print(f"##### {name}: exit {rc}")
        try:
            report = json.loads((out / f"{name}.json").read_text())
        except Exception as e:
            print("no report", e)
            continue
        for d in report["diagnoses"]:
            print(f"  [{d['severity']} {d['rule']}] {d['headline']}")
            for r in d["remedies"]:
                print(f"     - {r['title']}")
                for s in r["steps"]:
                    print(f"          {s}")
        for u in report["unexplained"][:3]:
            print("   UNEXPL", u["text"][:150])
        for g in report["gaps"][:3]:
            print("   GAP", g["what"], g["why"][:150])
        sys.stdout.flush()


main()
