"""Options and output that commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from raydoctor.capture.open import Capture
    from raydoctor.case.rule import Signal
    from raydoctor.observe.live import CollectOptions
    from raydoctor.render.page import Page

_Command = TypeVar("_Command", bound=Callable[..., Any])

REPORT_FORMATS = {
    "text": "",
    "json": "raydoctor.render.json",
    "markdown": "raydoctor.render.markdown",
    "html": "raydoctor.render.html.report",
    "sarif": "raydoctor.render.machine.sarif",
    "junit": "raydoctor.render.machine.junit",
    "github": "raydoctor.render.machine.github",
    "prometheus": "raydoctor.render.machine.prometheus",
}
"""Formats of a diagnosis, and the module whose `render` makes each."""
SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100}
}


def path_argument(command: _Command) -> _Command:
    """`[PATH]`: the capture. Opening the capture checks whether it exists, with a better error message."""
    return click.argument("path", required=False, shell_complete=complete_path)(command)


def driver_log_option(command: _Command) -> _Command:
    """`--driver-log FILE`."""
    return click.option(
        "--driver-log",
        metavar="FILE",
        shell_complete=complete_path,
        help="A file with the driver's output; - reads standard input. Without PATH, raydoctor "
        "reads only this file, even if a cluster runs on this machine.",
    )(command)


def session_option(command: _Command) -> _Command:
    """`--session NAME`."""
    return click.option(
        "--session",
        metavar="NAME",
        default="",
        help="The session to read if PATH has several; by default the newest.",
    )(command)


def format_option(
    *formats: str, text: str = "The output format."
) -> Callable[[_Command], _Command]:
    """`--format`, the first being the default; `--json` is short for `--format json`."""

    def with_both(command: _Command) -> _Command:
        command = click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=_json,
            help="Short for --format json.",
        )(command)
        return click.option(
            "--format",
            "form",
            type=click.Choice(formats),
            default=formats[0],
            show_default=True,
            is_eager=True,
            help=text,
        )(command)

    return with_both


def _json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        given = context.get_parameter_source("form")
        if given is ParameterSource.COMMANDLINE and context.params["form"] != "json":
            raise click.BadParameter(f"--json contradicts --format {context.params['form']}")
        context.params["form"] = "json"


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A span of time, `90`, `500ms`, `10m` or `2h`, as seconds between `least` and `most`."""

    name = "duration"

    def __init__(self, least: float = 0.0, most: float = float("inf")) -> None:
        self._least, self._most = least, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The seconds, or a usage error that says what is accepted."""
        from raydoctor.cli._time import parse_duration

        try:
            seconds = parse_duration(value) if isinstance(value, str) else float(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= seconds <= self._most:
            most = "" if self._most == float("inf") else f" and at most {self._most:g} s"
            self.fail(f"{value} is not at least {self._least:g} s{most}", param, ctx)
        return seconds


def grace_option(text: str) -> Callable[[_Command], _Command]:
    """`--grace`: the time before the next, harder step."""
    return click.option(
        "--grace",
        type=Duration(most=600),
        default="5s",
        show_default=True,
        help=text,
    )


def min_age_option(command: _Command) -> _Command:
    """`--min-age`."""
    return click.option(
        "--min-age",
        type=Duration(),
        default="60s",
        show_default=True,
        help="Idle time after which a task counts as hung if none of the same name has finished.",
    )(command)


def fail_on_option(command: _Command) -> _Command:
    """`--fail-on`."""
    return click.option(
        "--fail-on",
        type=click.Choice(["critical", "error", "warning", "info", "never"]),
        default="error",
        show_default=True,
        help="The lowest severity that gives exit code 1.",
    )(command)


def since_option(text: str) -> Callable[[_Command], _Command]:
    """`--since`: a time."""
    return click.option(
        "--since",
        metavar="TIME",
        callback=time_option,
        help=f"{text} TIME: a duration before now (2h), or a local time of this machine (2026-11-21T07:30).",
    )


def rules_option(command: _Command) -> _Command:
    """`--rules DIR`."""
    return click.option(
        "--rules",
        "folder",
        metavar="DIR",
        shell_complete=complete_path,
        help="A folder with your own rules: see raydoctor rules test --help.",
    )(command)


def output_option(command: _Command) -> _Command:
    """`-o FILE`."""
    return click.option(
        "-o",
        "--output",
        metavar="FILE",
        shell_complete=complete_path,
        help="Write the report to this file.",
    )(command)


def verbose_option(command: _Command) -> _Command:
    """`-v`."""
    return click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Show all details, and a traceback if raydoctor fails.",
    )(command)


def address_option(
    text: str = "Address of the cluster's GCS (host:port). Needed if the cluster runs elsewhere, or "
    "if several run here. auto: the cluster on this machine.",
) -> Callable[[_Command], _Command]:
    """`--address`."""
    return click.option("--address", metavar="ADDRESS", help=text)


def found_option() -> Callable[[_Command], _Command]:
    """`--found`, for raydoctor's own calls: the address was not typed, so no other user may listen there."""
    return click.option("--found", "is_found", is_flag=True, hidden=True)


def complete_running(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Completions: the tasks and actors that run on this machine."""
    from raydoctor.observe.processes import titles

    return [name for name in titles.names() if name.startswith(incomplete)]


def complete_rule(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completions: the names of rules."""
    from raydoctor import rules

    return [name for name in rules.names() if name.startswith(incomplete)]


def complete_path(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions: files and folders, which the shell lists."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def only_option() -> Callable[[_Command], _Command]:
    """`--only`, for raydoctor's own calls: act only on the identities that an earlier plan showed."""
    return click.option("--only", metavar="IDENTITIES", default="", hidden=True)


def check_only(only: str, identity: str) -> None:
    """Raise RaydoctorError if a plan was about something else than what would be acted on now."""
    from raydoctor.model.errors import RaydoctorError

    if only and only != identity:
        raise RaydoctorError(
            "nothing was done: the plan showed another attempt or process than the one of now",
            "Make a new plan.",
        )


def timeout_option(text: str, other: str = "") -> Callable[[_Command], _Command]:
    """`--timeout`; None means a default that depends on the machine's load. `other`: one more default."""
    default = f"[default: 5s, or up to 30s if this machine is busy{other}]"
    return click.option(
        "--timeout",
        type=Duration(0.1, 600),
        help=f"{text}  {default}",
    )


def live_options(command: _Command) -> _Command:
    """`--address`, `--timeout`, `--all-nodes/--this-node`."""
    return _live_options(command, "Time limit of each query to a live cluster.")


def collect_live_options(command: _Command) -> _Command:
    """The same for `collect`, which also queries Slurm."""
    return _live_options(command, "Time limit of each query.", "; 30s with --slurm")


def _live_options(command: _Command, limit: str, other: str = "") -> _Command:
    for option in (
        click.option(
            "--all-nodes/--this-node",
            "all_nodes",
            default=True,
            help="Include the cluster's other nodes, or only this machine.  [default: all nodes]",
        ),
        timeout_option(limit, other),
        address_option(),
    ):
        command = option(command)
    return command


def time_option(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """A point in time that a user names (`2h`, ISO) as epoch seconds."""
    from raydoctor.cli._time import parse_time

    if value is None:
        return None
    try:
        return parse_time(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def is_live(path: str | None, given: Mapping[str, Any]) -> bool:
    """Whether the user means a live cluster: there is no path, and not only a driver's output.

    Raises click.UsageError if both a path and a cluster are given.
    """
    if path is not None and given["address"] is not None:
        raise click.UsageError("PATH names a capture and --address a live cluster: give only one")
    return path is None and (given["driver_log"] is None or given["address"] is not None)


def opened_live(signals: Callable[[], Iterable[Signal]] = tuple, **given: Any) -> Capture:
    """The capture of a live cluster; choices made for the user are printed to standard error.

    `signals` returns the signals for the cluster's other nodes; it is called while the cluster is queried.
    """
    from raydoctor.capture.open import add_driver_log
    from raydoctor.cli._progress import Progress
    from raydoctor.observe import live

    with Progress("looking for a cluster") as progress:
        capture = live.collect(collect_options(signals, **given), progress.say).capture()
        if given["driver_log"] is not None:
            add_driver_log(capture, given["driver_log"])
    for each in capture.notes:
        note(each)
    return capture


def collect_options(
    signals: Callable[[], Iterable[Signal]] = tuple, **given: Any
) -> CollectOptions:
    """The options of a live collection."""
    from raydoctor.observe.collector.run import usual_timeout
    from raydoctor.observe.live import CollectOptions

    return CollectOptions(
        given["address"],
        usual_timeout() if given["timeout"] is None else given["timeout"],
        given["all_nodes"],
        since=given.get("since"),
        signals=signals,
        anonymize=given.get("anonymize", False),
        is_typed=not given.get("is_found"),
    )


def opened(path: str | None, driver_log: str | None, wanted: str = "") -> Capture:
    """The capture that the user names; choices made for the user are printed to standard error.

    `wanted`: the session to read; the newest if empty.
    """
    from raydoctor.capture import session
    from raydoctor.capture.open import open_capture
    from raydoctor.cli._progress import Progress
    from raydoctor.model import paste

    notes: list[str] = []
    if path is None and driver_log is None:
        from raydoctor.observe import live

        cluster, notes = live.find()
        path = cluster.session_dir or None
    with Progress(doing := "opening the capture") as progress:
        capture = open_capture(
            path,
            driver_log,
            report=lambda done, total: progress.say(doing, done, total),
            session=wanted,
        )
    if capture.kind == "session":
        from raydoctor.observe.processes import driver_output

        driver_output.add_kept(capture, capture.path)
    if path is None and driver_log is not None and (logs := session.beside(driver_log)):
        hint = "only the driver's output is read; to read the logs that may belong to it as well: "
        command = "raydoctor diagnose {logs:path} --driver-log {output:path}"
        notes.append(paste.text(hint) + paste.shell(command, logs=str(logs), output=driver_log))
    for each in (*notes, *capture.notes):
        note(each)
    return capture


def print_page(page: Page) -> None:
    """Write a page to standard output, in colour on a terminal.

    Its commands name the cluster that the user named with `--address`.
    """
    from raydoctor.render import terminal

    context = click.get_current_context(silent=True)
    if address := context and context.params.get("address"):
        from raydoctor.model import paste

        page = [tuple(s._replace(text=paste.at(s.text, address)) for s in each) for each in page]
    terminal.show(page, sys.stdout)


def print_text(text: str) -> None:
    """Write ready text to standard output."""
    from raydoctor.render import terminal

    sys.stdout.write(terminal.encodable(text, sys.stdout))


def write(text: str, output: str | None) -> None:
    """Write a report to the file of `-o`, or to standard output."""
    if output is None or output == "-":
        print_text(text)
        return
    from raydoctor.cli._files import write_atomically

    write_atomically(output, text)
    note(f"report written to {output}")


def note(text: str) -> None:
    """Print a redacted note to standard error."""
    from raydoctor.model.text import one_line
    from raydoctor.redact import Redactor

    click.echo(f"raydoctor: {one_line(Redactor().redact(text))}", err=True)
