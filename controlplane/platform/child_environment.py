"""Environment of the control plane's child processes."""

from __future__ import annotations

import os
from typing import Final

DEMO_RUN: Final = "GRAFTWORK_DEMO_RUN"
"""Variable that marks the processes of a demo, which ends them when it stops."""
_INHERITED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    DEMO_RUN,
)


def inherited(*prefixes: str) -> dict[str, str]:
    """Return the variables of this process that every child process gets, and those whose names begin with
    one of `prefixes`. The database's address and keys stay out."""
    return {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(prefixes)
    }
