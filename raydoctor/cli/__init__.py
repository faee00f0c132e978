"""The command line: one file per command, imported when it is called.

`raydoctor PATH` is `raydoctor diagnose PATH`. Exit codes: 0 nothing found and the evidence was
complete, 1 something found, 2 could not run, 3 nothing found but evidence is missing.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import click

from raydoctor.model.errors import NO_ROOM, RaydoctorError
from raydoctor.model.text import one_line, printable
from raydoctor.model.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DEFAULT = "diagnose"
SECTIONS = {
    "Diagnose": ("diagnose", "explain", "story", "diff", "collect", "rules"),
    "Live cluster": ("status", "hung", "stack", "attach", "watch"),
    "Clean up": ("zombies", "cancel"),
    "Prepare": ("check", "run", "demo"),
    "For AI agents": ("mcp", "skill"),
}
"""The commands in the order of the general help."""
_OTHERS = ("help", "version", "completion")
"""Words that are no modules of this folder."""
CANNOT_RUN = 2
_INTERRUPTED = 130
_COMPLETE = "_RAYDOCTOR_COMPLETE"
"""The variable with which a shell asks for completions."""

_HELP = """Diagnose a broken Ray job: the cause, the evidence and the fix.

\b
Examples:
  raydoctor                                  the cluster that runs here, live
  raydoctor /tmp/ray/session_latest          a session, or its logs/
  raydoctor logs.tar.gz --format markdown    an archive, for a GitHub issue
  ray job logs JOB | raydoctor --driver-log -
  raydoctor collect                          one redacted archive for a bug report
  raydoctor check                            check this machine before a run
  raydoctor status                           what runs, what waits and why
  raydoctor hung                             which tasks are hung, and what blocks them
  raydoctor attach TASK                      attach a debugger to a running task
  raydoctor zombies --kill                   end leftover Ray processes, and nothing else
  raydoctor demo                             start a throwaway cluster, break it and diagnose it

`raydoctor PATH` is short for `raydoctor diagnose PATH`. `raydoctor help COMMAND` shows the
options of a command.

`eval "$(raydoctor completion bash)"` turns on Tab completion of commands,
rule names and the names of running tasks (also for zsh and fish).
"""


_COMPLETION_HELP = """Usage: raydoctor completion bash|zsh|fish

Print a script that completes commands, options, files, rules, and the tasks and actors that run
on this machine.

Examples:
  eval "$(raydoctor completion bash)"                            in ~/.bashrc
  eval "$(raydoctor completion zsh)"                             in ~/.zshrc
  raydoctor completion fish | source                             in ~/.config/fish/config.fish
"""


def main(
    arguments: Sequence[str] | None = None, invoke: Callable[[list[str]], int] | None = None
) -> NoReturn:
    """Run the command line and exit; `invoke` runs another one than raydoctor's own."""
    # A diagnosis makes many small values and few cycles: garbage collection took a third of its time.
    gc.disable()
    _open_the_closed()
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments), invoke))


def _open_the_closed() -> None:
    """Replace a closed standard stream (`>&-`) by the null device: the caller may want only the exit code.

    Otherwise the next opened file gets its number, and the output goes into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def execute(arguments: list[str], invoke: Callable[[list[str]], int] | None = None) -> int:
    """Run the command line and return the exit code. Errors become messages for the user."""
    try:
        code = _finish(arguments, invoke or _invoke)
    except click.ClickException as error:
        error.show()
        code = CANNOT_RUN
    except RaydoctorError as error:
        _complain(error.message, _reaching(error.hint, arguments))
        code = CANNOT_RUN
    except BrokenPipeError:
        _forget_stdout()
        code = 0
    except OSError as error:
        if error.errno in NO_ROOM:
            _forget_stdout()
            hint = (
                "Free some space, or send the output elsewhere (-o FILE where the command has it)."
            )
            _complain(f"cannot write the output: {error.strerror}", hint)
        else:
            _crashed(error, arguments)
        code = CANNOT_RUN
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        code = _INTERRUPTED
    except Exception as error:
        _crashed(error, arguments)
        code = CANNOT_RUN
    return code


def _finish(arguments: list[str], invoke: Callable[[list[str]], int]) -> int:
    """Run the command, and flush its output before the exit code is final."""
    try:
        code = invoke(arguments)
    except click.exceptions.Exit as request:
        code = request.exit_code
    sys.stdout.flush()
    return code


def _invoke(arguments: list[str]) -> int:
    if arguments[:1] == ["completion"] or arguments == ["help", "completion"]:
        return _completion(arguments[1:])
    if os.environ.get(_COMPLETE):
        return _complete(os.environ[_COMPLETE].removesuffix("_complete"))
    arguments = with_default(arguments)
    # Only the requested command is imported; the general help needs all of them.
    called = [arguments[0]] if arguments[0] in names() else names()
    group = _group(called)
    with group.make_context("raydoctor", arguments) as context:
        return int(group.invoke(context) or 0)


def _completion(words: list[str]) -> int:
    """Print the completions of a shell. Raises RaydoctorError for an unknown one."""
    from click.shell_completion import get_completion_class

    if words[-1:] in (["-h"], ["--help"], ["completion"]):
        click.echo(_COMPLETION_HELP)
        return 0
    made = get_completion_class(words[0]) if len(words) == 1 else None
    if made is None:
        raise RaydoctorError(
            "completion needs the name of a shell: bash, zsh or fish",
            'For bash, add to ~/.bashrc: eval "$(raydoctor completion bash)"',
        )
    if words == [
        "zsh"
    ]:  # a bare zsh has no completions; -i: without those that another user could write
        click.echo("(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }")
    click.echo(made(_group([]), {}, "raydoctor", _COMPLETE).source())
    return 0


def _complete(shell: str) -> int:
    """Print the completions of the word before the cursor, which the shell passes in its environment.

    `--format=h` is one word for fish and zsh, whose completions replace it whole, and three for bash.
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    if made is None:
        return CANNOT_RUN
    completer = made(_completed(), {}, "raydoctor", _COMPLETE)
    words, word = completer.get_completion_args()
    option, equals, value = word.partition("=")
    is_joined = bool(equals) and option.startswith("--")
    if is_joined:
        words, word = [*words, option], value
    elif words[-1:] == ["="]:
        words = words[:-1]
    for item in completer.get_completions(words, "" if word == "=" else word):
        item.value = f"{option}={item.value}" if is_joined else item.value
        click.echo(completer.format_completion(item))
    return 0


def _completed() -> click.Group:
    """The group whose words and options a shell completes."""
    group = _group(names())
    group.add_command(click.Command("version"))
    for name, choices in (("help", names()), ("completion", ["bash", "zsh", "fish"])):
        argument = click.Argument(["word"], type=click.Choice(choices))
        group.add_command(click.Command(name, params=[argument]))
    return group


def with_default(arguments: list[str]) -> list[str]:
    """The arguments, with `diagnose` added if they name no command."""
    if not arguments:
        return [DEFAULT]
    first = arguments[0]
    if first == "help":
        return _help_of(arguments[1:])
    if first == "version":
        return ["--version", *arguments[1:]]
    if first in names() or first in ("-h", "--help", "--version"):
        return arguments
    if not first.startswith("-") and not os.path.lexists(first):
        _suggest(first)
        if {"-h", "--help"} & {*arguments}:
            raise RaydoctorError(
                f"{first} is neither a command nor a file", "All commands: raydoctor help"
            )
    return [DEFAULT, *arguments]


def _help_of(words: list[str]) -> list[str]:
    """`help zombies` is `zombies --help`. Raises RaydoctorError for an unknown command."""
    if words and not words[0].startswith("-") and words[0] not in names():
        _suggest(words[0])
        raise RaydoctorError(f"{words[0]} is not a command", "All commands: raydoctor help")
    return [*words, "--help"]


def _suggest(word: str) -> None:
    """Refuse an argument that is not a path and looks like a misspelt command."""
    from difflib import get_close_matches

    if close := get_close_matches(word, [*names(), *_OTHERS], n=1, cutoff=0.7):
        raise RaydoctorError(
            f"{word} is neither a command nor a file",
            f"Did you mean `raydoctor {close[0]}`? All commands: raydoctor help",
        )


def names() -> list[str]:
    """The names of the commands, which are the modules of this folder."""
    folder = os.path.dirname(__file__)
    return sorted(
        entry.partition(".")[0].replace("_", "-")
        for entry in os.listdir(folder)
        if entry.endswith(".py") and not entry.startswith("_")
    )


class _SectionedGroup(click.Group):
    """A group whose help lists its commands by purpose."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """For completions, `raydoctor PATH` is a diagnosis as well."""
        if ctx.resilient_parsing and args and args[0] not in self.commands:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, and otherwise files and options: `raydoctor PATH` is a diagnosis."""
        from click.shell_completion import CompletionItem

        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            default = self.commands[DEFAULT].make_context(DEFAULT, [], ctx, resilient_parsing=True)
            options = default.command.shell_complete(default, incomplete)
            return [*options, *(each for each in found if each.value == "--version")]
        return found or [CompletionItem(incomplete, type="file")]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a table for each section, all with the same columns."""
        room = max(map(len, self.commands))
        for title, listed in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (f"{name:{room}}", self.commands[name].get_short_help_str())
                        for name in listed
                        if name in self.commands
                    ]
                )


def _group(commands: Sequence[str]) -> click.Group:
    group = _SectionedGroup(
        "raydoctor",
        commands={name: _load(name) for name in commands},
        help=_HELP,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    group.params.append(version_option())
    return group


def _load(name: str) -> click.Command:
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    command = module.command
    assert isinstance(command, click.Command)
    return command


def version_option() -> click.Option:
    """`--version` from the package itself: reading the installed metadata takes 20 ms."""

    def show(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
        if wanted:
            click.echo(f"raydoctor {__version__}")
            context.exit()

    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the version and exit.",
    )


def _reaching(hint: str, arguments: list[str]) -> str:
    """The hint with commands for the cluster that the user named with `--address`."""
    from raydoctor.model import paste

    words = " ".join(arguments).replace("--address=", "--address ").partition("--address ")[2]
    return paste.at(hint, words.partition(" ")[0])


def _complain(message: str, hint: str = "") -> None:
    """Print an error message, redacted: an address or a command in it may contain a password."""
    from raydoctor.model.paste import changed
    from raydoctor.redact import Redactor

    redact = Redactor().redact
    with suppress(
        OSError
    ):  # if standard error is not writable, the exit code still reports the error
        click.echo(f"raydoctor: {one_line(redact(message))}", err=True)
        if hint:
            click.echo(f"  {one_line(changed(hint, redact))}", err=True)


def _crashed(error: Exception, arguments: Sequence[str]) -> None:
    """Report an error in raydoctor itself: one line, and how to report it."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if {"-v", "--verbose"} & set(arguments):
        from traceback import format_exc

        with suppress(OSError):
            click.echo(printable(format_exc()), err=True, nl=False)
        hint = f"Please report the traceback above; this is raydoctor {__version__}."
    else:
        hint = "Run it again with -v, and please report what it prints with the command you gave."
    _complain(f"internal error: {what}", hint)


def _forget_stdout() -> None:
    """Drop the buffered output, so that Python's flush at exit does not fail as well."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives until the exit
