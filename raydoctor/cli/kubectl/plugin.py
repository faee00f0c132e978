"""The commands of `kubectl raydoctor`, each for one RayCluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from raydoctor.cli import _options as options
from raydoctor.cli import main as run_command_line
from raydoctor.cli import version_option

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture
    from raydoctor.observe.gathered import Gathered
    from raydoctor.observe.kubectl.choice import Chosen
    from raydoctor.observe.kubectl.client import Kubectl

_Command = TypeVar("_Command", bound=Callable[..., Any])
FOUND, INCOMPLETE = 1, 3

_HELP = """Diagnose a Ray cluster on Kubernetes with your kubectl and its permissions.

NAME is a RayCluster, rayjob/JOB or rayservice/SERVICE. You can omit it if the namespace
has one cluster. `kubectl raydoctor NAME` is short for `kubectl raydoctor diagnose NAME`.

raydoctor reads the pods, their events, the logs of their containers, and Ray's logs in
them (this needs permission to exec). If the head's image has raydoctor, it also collects the
live state there. It changes nothing in the cluster. What you have no permission to read is
listed as missing evidence.

\b
Examples:
  kubectl raydoctor
  kubectl raydoctor train -n ml
  kubectl raydoctor rayjob/nightly --format markdown -o issue.md
  kubectl raydoctor collect train -o train.tar.gz
  kubectl raydoctor hung train
  kubectl raydoctor zombies train

`kubectl raydoctor COMMAND --help` shows the options of a command.
"""


def main() -> NoReturn:
    """Run the plugin and exit."""
    run_command_line(invoke=invoke)


def invoke(arguments: list[str]) -> int:
    """Run a command of the plugin and return its exit code."""
    names = {each.name for each in _COMMANDS}
    if not arguments or arguments[0] not in {*names, "-h", "--help", "--version"}:
        arguments = ["diagnose", *arguments]
    group = click.Group(
        "raydoctor",
        commands={each.name or "": each for each in _COMMANDS},
        help=_HELP,
        **options.SETTINGS,
    )
    group.params.append(version_option())
    with group.make_context("kubectl raydoctor", arguments) as context:
        return int(group.invoke(context) or 0)


def _cluster_options(command: _Command) -> _Command:
    """`[NAME]`, and the options with which kubectl chooses a cluster."""
    for option in (
        click.option(
            "--timeout",
            type=options.Duration(1, 3600),
            default="60s",
            show_default=True,
            help="Time limit of all calls of kubectl together.",
        ),
        click.option("--kubeconfig", metavar="FILE", help="As for kubectl."),
        click.option("--context", metavar="NAME", help="As for kubectl."),
        click.option("-n", "--namespace", metavar="NAME", help="As for kubectl."),
        click.argument("name", required=False),
    ):
        command = option(command)
    return command


@click.command("diagnose", short_help="What broke, why, and how to fix it.", **options.SETTINGS)
@_cluster_options
@options.format_option(*options.REPORT_FORMATS)
@options.since_option("Only incidents since this time")
@options.fail_on_option
@options.output_option
@options.rules_option
@options.verbose_option
def _diagnose(since: float | None, fail_on: str, **rest: Any) -> int:
    """Diagnose a cluster: what broke, why, the evidence and the fix.

    \b
    Examples:
      kubectl raydoctor diagnose train -n ml
      kubectl raydoctor diagnose rayjob/nightly --format json

    Exit code: 0 nothing found, 1 found, 2 could not run, 3 inconclusive.
    """
    from raydoctor.cli import diagnose
    from raydoctor.diagnosis import plugins

    catalogue = plugins.catalogue(rest["folder"])
    with _collected(rest) as (_, capture):
        return diagnose.report_on(capture, catalogue, fail_on, since=since, onward=False, **rest)


@click.command(
    "collect",
    short_help="Collect pods, events, logs and live state into one archive.",
    **options.SETTINGS,
)
@_cluster_options
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The archive to write; - is standard output (.tar.gz).  "
    "[default: raydoctor-DATE-TIME.tar.gz]",
)
@click.option("--anonymize", is_flag=True, help="Replace IP addresses as well.")
@options.verbose_option
def _collect(output: str | None, anonymize: bool, **rest: Any) -> int:
    """Collect what the pods record into one archive, with known kinds of secrets replaced.

    \b
    Examples:
      kubectl raydoctor collect train -o train.tar.gz
      raydoctor diagnose train.tar.gz

    Exit code: 0 written and complete, 2 could not run, 3 written, but
    some evidence could not be collected.
    """
    from raydoctor.cli import collect

    target = collect.target_of(output)
    with _collected(rest) as (found, capture):
        return collect.write_gathered(target, found, capture, anonymize)


@click.command("hung", short_help="Find hung tasks, and what they wait for.", **options.SETTINGS)
@_cluster_options
@options.min_age_option
@options.format_option("text", "json")
@options.verbose_option
def _hung(min_age: float, form: str, verbose: bool, **rest: Any) -> int:
    """Find hung tasks of a cluster; the head's image needs raydoctor.

    \b
    Example:
      kubectl raydoctor hung train --min-age 10m

    Exit code: 0 nothing hangs, 1 something hangs, 2 could not run, 3 inconclusive.
    """
    from raydoctor.cli import hung

    with _collected(rest, only_live=True) as (_, capture):
        return hung.report(capture, min_age, form, verbose)


@click.command("zombies", short_help="Find what Ray left running in the pods.", **options.SETTINGS)
@_cluster_options
@options.format_option("text", "json")
@options.verbose_option
def _zombies(form: str, verbose: bool, **rest: Any) -> int:
    """Find processes that outlived their worker or session in each pod; the image needs raydoctor.

    This command ends nothing. For each pod, the report ends with the command that ends leftovers
    there, which shows its plan and asks.

    \b
    Example:
      kubectl raydoctor zombies train

    Exit code: 0 nothing is left, 1 something is, 2 could not run, 3 inconclusive.
    """
    del verbose
    from raydoctor.cli._progress import Progress
    from raydoctor.observe.kubectl import leftovers
    from raydoctor.observe.kubectl.choice import pods_of

    with _connected(rest) as (kubectl, chosen, gaps), Progress("searching the pods") as progress:
        found = leftovers.search(kubectl, pods_of(chosen.objects["pods"])[0], progress.say)
    from raydoctor.render import pods, terminal

    if form == "json":
        options.print_text(pods.to_json(found))
    else:
        command = partial(leftovers.command, kubectl, chosen.namespace)
        options.print_page(pods.render(found, command, terminal.width_of(sys.stdout)))
    if any(each.leftovers for each in found):
        return FOUND
    return INCOMPLETE if gaps or not found or any(each.problem for each in found) else 0


@contextmanager
def _connected(given: dict[str, Any]) -> Iterator[tuple[Kubectl, Chosen, list[Any]]]:
    """The user's kubectl, the cluster, and which objects could not be listed."""
    from raydoctor.cli._progress import Progress
    from raydoctor.observe.kubectl import collect
    from raydoctor.observe.kubectl.client import connected

    with connected(*(given[k] for k in ("namespace", "context", "kubeconfig", "timeout"))) as found:
        with Progress("asking the API server"):
            chosen, gaps = collect.find(found, given["name"])
        yield found, chosen, gaps


@contextmanager
def _collected(
    given: dict[str, Any], only_live: bool = False
) -> Iterator[tuple[Gathered, Capture]]:
    """All that the pods of the cluster record, or only its live state, as a capture."""
    from raydoctor.cli._progress import Progress
    from raydoctor.observe.gathered import gathered
    from raydoctor.observe.kubectl import collect
    from raydoctor.observe.processes.redact import shared

    with (
        _connected(given) as (kubectl, chosen, gaps),
        gathered(chosen.shown, shared()) as found,
    ):
        found.gaps += gaps
        with Progress("reading the pods") as progress:
            if only_live:
                collect.collect_live(kubectl, chosen, found)
            else:
                collect.collect(kubectl, chosen, found, progress.say)
        with found.capture() as capture:
            head = collect.running_head(chosen)
            if head and any(source.role == "live" for source in capture.files):
                words = "exec -it {pod} -c {container} -- raydoctor …"
                names = {"pod": head.name, "container": head.container}
                line = kubectl.line(chosen.namespace, words, **names)
                options.note(f"commands of raydoctor in the report run in the head: {line}")
            for each in capture.notes:
                options.note(each)
            yield found, capture


_COMMANDS = (_diagnose, _collect, _hung, _zombies)
