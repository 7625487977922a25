"""Detects a demo database of an earlier version, whose migrations no longer exist."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

_CONTROL_PLANE: Final = Path(__file__).resolve().parents[1] / "controlplane"


def is_old(database: Path) -> bool:
    """Return True if the SQLite file was made by migrations that this version does not have.

    It records one of them, or its tables come from a first migration before later ones were merged into it.
    """
    if not database.exists():
        return False
    known = {(path.parents[1].name, path.stem) for path in _CONTROL_PLANE.rglob("migrations/0*.py")}
    apps = {app for app, _ in known}
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            applied = connection.execute("SELECT app, name FROM django_migrations").fetchall()
        except sqlite3.OperationalError:  # it has no tables yet
            return False
        columns = {row[1] for row in connection.execute("PRAGMA table_info(metering_usageeventrow)")}
    if columns and "reasoning_tokens" not in columns:
        return True
    return any(app in apps and (app, name) not in known for app, name in applied)


def set_aside(state: Path, progress: Callable[[str], None]) -> None:
    """Rename the demo's folder, so that the next start begins with an empty one, and say so."""
    aside = next(
        path for number in count(1) if not (path := state.with_name(f"{state.name}.old-{number}")).exists()
    )
    state.rename(aside)
    progress(
        f"The demo's database was made by an earlier version of Graftwork, which this one cannot read. It "
        f"was moved to {aside}, and the demo starts with an empty database. Delete that folder when you no "
        "longer need it."
    )
