"""Tables of an earlier first migration are refused before anything is changed."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.core.management.base import CommandError
from django.db import connection

pytestmark = pytest.mark.django_db


def test_tables_without_later_columns_are_refused() -> None:
    migration = import_module("controlplane.metering.migrations.0002_images_and_operation")
    editor = connection.schema_editor()
    migration.refuse_older_tables(None, editor)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE metering_usageeventrow RENAME COLUMN reasoning_tokens TO before")
    with pytest.raises(CommandError, match="start with an empty database"):
        migration.refuse_older_tables(None, editor)
