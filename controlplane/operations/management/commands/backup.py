"""`manage.py backup`: back up an SQLite database while it is in use."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection


class Command(BaseCommand):
    """Use SQLite's online backup: a consistent snapshot that does not block writers."""

    help = "Back up the SQLite database to a new file; for PostgreSQL, print the pg_dump command to run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="path of the new file")

    def handle(self, *args: Any, **options: Any) -> None:
        target: Path = options["file"]
        if connection.vendor != "sqlite":
            raise CommandError(
                f"This command backs up SQLite only. Run: pg_dump --format=custom --file={target}"
                " <database URL>"
            )
        if target.exists():
            raise CommandError(f"{target} exists already: choose a new file.")
        partial = target.with_name(f"{target.name}.partial")
        partial.unlink(missing_ok=True)
        # The file has email addresses and key hashes: only its owner may read it, from the first byte.
        partial.touch(mode=0o600, exist_ok=False)
        source = sqlite3.connect(f"file:{connection.settings_dict['NAME']}?mode=ro", uri=True)
        copy = sqlite3.connect(partial)
        try:
            source.backup(copy, pages=4096)
            if (found := copy.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
                raise CommandError(f"The backup failed its integrity check: {found}")
            copy.execute("PRAGMA journal_mode=DELETE")
        finally:
            copy.close()
            source.close()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(target)
        self.stdout.write(f"{target}: {target.stat().st_size} bytes")
