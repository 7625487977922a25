"""`manage.py backup`: a copy of an SQLite database, taken while it is in use."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection


class Command(BaseCommand):
    """SQLite's own online backup: whole as of one moment, writers go on meanwhile."""

    help = "Copy the SQLite database to a new file; of PostgreSQL it tells what to run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="new file")

    def handle(self, *args: Any, **options: Any) -> None:
        target: Path = options["file"]
        if connection.vendor != "sqlite":
            raise CommandError(f"run: pg_dump --format=custom --file={target} <database URL>")
        if target.exists():
            raise CommandError(f"{target} exists: name a new file")
        partial = target.with_name(f"{target.name}.partial")
        partial.unlink(missing_ok=True)
        # People's addresses and keys' hashes are in it: its owner's alone from the first byte.
        partial.touch(mode=0o600, exist_ok=False)
        source = sqlite3.connect(f"file:{connection.settings_dict['NAME']}?mode=ro", uri=True)
        copy = sqlite3.connect(partial)
        try:
            source.backup(copy, pages=4096)
            if (found := copy.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
                raise CommandError(f"the copy is damaged: {found}")
            copy.execute("PRAGMA journal_mode=DELETE")
        finally:
            copy.close()
            source.close()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(target)
        self.stdout.write(f"{target}: {target.stat().st_size} bytes")
