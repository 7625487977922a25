"""The command line `graftwork`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line, or says which extra to install."""
    # Else httpx loads a command line of its own with click, rich and pygments: half of a command's time.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    try:
        from graftwork.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("the command line needs two more packages: pip install 'graftwork-client[cli]'")
    run()
