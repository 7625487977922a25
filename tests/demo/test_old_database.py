"""Databases of earlier versions are recognised and set aside."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from demo.old_database import is_old, set_aside


@pytest.mark.parametrize(
    ("applied", "old"),
    [
        ([("billing", "0001_initial"), ("account", "0001_initial"), ("account", "0999_of_a_library")], False),
        ([("billing", "0001_initial"), ("billing", "0010_shortfall")], True),
        ([], False),
    ],
)
def test_a_database_with_migrations_that_are_gone_is_old(
    tmp_path: Path, applied: list[tuple[str, str]], old: bool
) -> None:
    database = tmp_path / "graftwork.db"
    assert not is_old(database), "there is none"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.commit()
        assert not is_old(database), "it has no tables"
        connection.execute("CREATE TABLE django_migrations (app TEXT, name TEXT)")
        connection.executemany("INSERT INTO django_migrations VALUES (?, ?)", applied)
        connection.commit()
    assert is_old(database) == old


@pytest.mark.parametrize(("column", "old"), [("reasoning_tokens", False), ("id", True)])
def test_tables_from_before_migrations_were_merged_are_old(tmp_path: Path, column: str, old: bool) -> None:
    database = tmp_path / "graftwork.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE django_migrations (app TEXT, name TEXT)")
        connection.execute("INSERT INTO django_migrations VALUES ('metering', '0001_initial')")
        connection.execute(f"CREATE TABLE metering_usageeventrow ({column} INTEGER)")
        connection.commit()
    assert is_old(database) == old


def test_its_folder_is_renamed_and_nothing_is_lost(tmp_path: Path) -> None:
    said: list[str] = []
    for number in (1, 2):
        state = tmp_path / "demo"
        state.mkdir()
        (state / "graftwork.db").write_text(str(number))
        set_aside(state, said.append)
        assert not state.exists()
        assert (tmp_path / f"demo.old-{number}" / "graftwork.db").read_text() == str(number)
    assert "earlier version" in said[0]
    assert str(tmp_path / "demo.old-1") in said[0]
