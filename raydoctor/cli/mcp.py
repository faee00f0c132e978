"""`raydoctor mcp`: a server with which agents diagnose, over the Model Context Protocol."""

from __future__ import annotations

import click

from raydoctor.cli import _options as options

_HELP = """Serve diagnoses to AI agents, over the Model Context Protocol (MCP).

An agent starts the server itself, or connects to it over HTTP (--http). Its eight tools
only read: diagnose, finding, evidence, story, hung, stacks, explain, check.

A reply has at most 8,000 characters, and marks log text as untrusted data, not
instructions. Install the server with: pip install 'raydoctor[mcp]'

\b
Examples:
  raydoctor mcp                              on standard input and output
  claude mcp add raydoctor -- raydoctor mcp
  raydoctor mcp --http 8931                  on 127.0.0.1, with a token
  raydoctor mcp --allow-actions              with the tools plan and act

With --allow-actions, an agent can also cancel a task, end leftover Ray processes, and run
Python code inside a task's process, each only as a plan of the last 5 minutes showed it.

raydoctor asks the agent to show you the plan first, but cannot enforce that. The audit log
records every action.
"""


@click.command("mcp", help=_HELP, short_help="Serve diagnoses to AI agents.", **options.SETTINGS)
@click.option(
    "--http",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve HTTP on this port of 127.0.0.1; 0 is any free port.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="A private file with the token for --http; by default a new token is printed.",
)
@options.address_option(
    "A cluster that runs elsewhere: host:port of its GCS. Agents reach only this cluster and those of "
    "this machine."
)
@click.option("--allow-actions", is_flag=True, help="Add tools that change something: plan, act.")
@options.verbose_option
def command(
    *,
    port: int | None,
    token_file: str | None,
    address: str | None,
    allow_actions: bool,
    verbose: bool,
) -> int:
    """Serve."""
    del verbose
    if token_file is not None and port is None:
        raise click.UsageError("--token-file needs --http")
    try:
        from raydoctor.agents import server
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    built = server.build(allow_actions, address or "")
    if port is None:
        server.serve_stdio(built)
    else:
        from raydoctor.agents import http

        http.serve_http(built, port, http.token_from(token_file) if token_file else "")
    return 0


def _not_installed(error: ModuleNotFoundError) -> Exception:
    from raydoctor.model.errors import RaydoctorError

    if (error.name or "").partition(".")[0] == "raydoctor":
        return error
    return RaydoctorError(
        "raydoctor mcp needs the packages of raydoctor[mcp], and they are not installed",
        "pip install 'raydoctor[mcp]'",
    )
