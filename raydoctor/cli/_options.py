"""Options and output that commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture
    from raydoctor.render.page import Page

_Command = TypeVar("_Command", bound=Callable[..., Any])

SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100}
}


def path_argument(command: _Command) -> _Command:
    """`[PATH]`: what to read. Whether it exists is for the capture to say, with better words."""
    return click.argument("path", required=False)(command)


def driver_log_option(command: _Command) -> _Command:
    """`--driver-log FILE`."""
    return click.option(
        "--driver-log",
        metavar="FILE",
        help="The driver's output, if it lies elsewhere; - reads standard input.",
    )(command)


def format_option(*formats: str) -> Callable[[_Command], _Command]:
    """`--format`, the first being the default."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="How to print it.",
    )


def rules_option(command: _Command) -> _Command:
    """`--rules DIR`."""
    return click.option(
        "--rules",
        "folder",
        metavar="DIR",
        help="A folder with further rules, one a file: see raydoctor rules test --help.",
    )(command)


def verbose_option(command: _Command) -> _Command:
    """`-v`."""
    return click.option(
        "-v", "--verbose", is_flag=True, help="Show everything; a traceback if raydoctor fails."
    )(command)


def opened(path: str | None, driver_log: str | None) -> Capture:
    """The capture that the user names; what was chosen for them is said on standard error."""
    from raydoctor.capture.open import open_capture
    from raydoctor.cli._progress import patience

    with patience("opening the capture"):
        capture = open_capture(path, driver_log)
    for each in capture.notes:
        note(each)
    return capture


def print_page(page: Page) -> None:
    """Write a page to standard output, painted for a terminal."""
    from raydoctor.render import terminal

    terminal.show(page, sys.stdout)


def print_text(text: str) -> None:
    """Write ready text to standard output."""
    from raydoctor.render import terminal

    sys.stdout.write(terminal.encodable(text, sys.stdout))


def note(text: str) -> None:
    """Say something beside the report, on standard error."""
    from raydoctor._text import one_line

    click.echo(f"raydoctor: {one_line(text)}", err=True)
