"""The command line `graftwork`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line, or says which extra to install."""
    try:
        from graftwork.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("the command line needs two more packages: pip install 'graftwork-client[cli]'")
    run()
