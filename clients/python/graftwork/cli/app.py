"""The commands, and how their errors end the process."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from graftwork.cli import adapters, aliases, chat, convert, keys, login, output, usage
from graftwork.cli.exits import UNAVAILABLE
from graftwork.errors import GraftworkError
from graftwork.version import VERSION

app = typer.Typer(
    name="graftwork", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.add_typer(adapters.app, name="adapters")
app.add_typer(aliases.app, name="alias")
app.add_typer(keys.app, name="keys")
for command in (login.login, login.logout, login.whoami, chat.chat, usage.usage, convert.convert):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        print(f"graftwork {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Register adapters, manage aliases and keys, chat, and read usage."""


def run() -> None:
    """Runs the command line; see `exits` for its exit statuses."""
    try:
        app(prog_name="graftwork")
    except GraftworkError as error:
        sys.exit(output.fail(error))
    except TimeoutError as error:
        output.err.print(f"[bold red]error:[/] {error}")
        sys.exit(UNAVAILABLE)
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does; without this Python complains when it closes stdout.
        sys.stderr.close()
        sys.exit(0)
