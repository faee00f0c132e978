"""Programs on PATH that answer from a folder: `kubectl`, `sacct`, `scontrol`.

The answer to `kubectl get pods -l ray.io/cluster` is the file `get pods ray.io_cluster`; beside it may be a file
`….err` (standard error), `….code` (exit code), and `….sleep` (seconds before the end).
"""

from __future__ import annotations

from pathlib import Path

_PROGRAM = """#!/bin/sh
key=
for word do
  case $word in
    --namespace=*|--context=*|--kubeconfig=*|--tail=*|--format=*|-o|json|-c|--|-l|-j|ray-head|ray-worker) ;;
    *) key="$key${key:+ }$word" ;;
  esac
done
key=$(printf %s "$key" | tr / _)
here=FOLDER
printf '%s\\n' "$*" >> "$here/asked"
if [ -f "$here/$key.err" ]; then cat "$here/$key.err" >&2; fi
if [ -f "$here/$key" ]; then cat "$here/$key"; fi
if [ -f "$here/$key.sleep" ]; then sleep "$(cat "$here/$key.sleep")"; fi
if [ -f "$here/$key.code" ]; then exit "$(cat "$here/$key.code")"; fi
[ -e "$here/$key" ] || { echo "error: no answer: $key" >&2; exit 1; }
"""


class StandIn:
    """A program in a folder of its own, which belongs on PATH."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.answers = folder / "answers"
        self.programs = folder / "bin"
        self.answers.mkdir(parents=True)
        self.programs.mkdir()
        for name in names:
            file = self.programs / name
            file.write_text(_PROGRAM.replace("FOLDER", f"'{self.answers}'"))
            file.chmod(0o755)

    def answer(
        self, key: str, out: str | bytes = b"", err: str = "", code: int = 0, sleep: float = 0
    ) -> None:
        """Set the answer to a command."""
        data = out.encode() if isinstance(out, str) else out
        (self.answers / key).write_bytes(data)
        for suffix, value in (("err", err), ("code", code), ("sleep", sleep)):
            file = self.answers / f"{key}.{suffix}"
            file.unlink(missing_ok=True)
            if value:
                file.write_text(f"{value}")

    @property
    def asked(self) -> list[str]:
        """All command lines so far."""
        return (self.answers / "asked").read_text().splitlines()
