"""The command line `graftwork`."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. Says what to install when the extra is missing."""
    try:
        from graftwork.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("the command line needs two more packages: pip install 'graftwork-client[cli]'")
    run()
