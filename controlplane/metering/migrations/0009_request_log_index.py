"""The request log's index. On PostgreSQL partition by partition, while events are still written."""

from typing import Final

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

_TABLE: Final = "metering_usageeventrow"
_INDEX: Final = "usage_event_listed"
_WITHOUT: Final = """
SELECT part.inhrelid::regclass::text, child.relname FROM pg_inherits AS part
JOIN pg_class AS child ON child.oid = part.inhrelid
WHERE part.inhparent = %s::regclass AND NOT EXISTS (
    SELECT 1 FROM pg_index AS held JOIN pg_inherits AS attached ON attached.inhrelid = held.indexrelid
    WHERE held.indrelid = part.inhrelid AND attached.inhparent = %s::regclass)
"""
"""Partitions, by name, that have no index attached to the parent's."""


def index(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The parent's alone first, which costs nothing; each partition's is built beside its writers."""
    with schema_editor.connection.cursor() as cursor:
        if schema_editor.connection.vendor != "postgresql":
            cursor.execute(f"CREATE INDEX IF NOT EXISTS {_INDEX} ON {_TABLE} (tenant, event_id)")
            return
        cursor.execute(f"CREATE INDEX IF NOT EXISTS {_INDEX} ON ONLY {_TABLE} (tenant, event_id)")
        cursor.execute(_WITHOUT, [_TABLE, _INDEX])
        for partition, name in cursor.fetchall():
            own = f'"{name}_listed"'
            # One that was broken off is there and invalid.
            cursor.execute(f"DROP INDEX IF EXISTS {own}")
            cursor.execute(f"CREATE INDEX CONCURRENTLY {own} ON {partition} (tenant, event_id)")
            cursor.execute(f"ALTER INDEX {_INDEX} ATTACH PARTITION {own}")


def drop(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """With those of its partitions."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(f"DROP INDEX IF EXISTS {_INDEX}")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("metering", "0008_dead_letters_of_tenants")]

    operations = [
        migrations.RunPython(index, drop),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddIndex(
                    "usageeventrow", models.Index(fields=["tenant", "event_id"], name="usage_event_listed")
                )
            ]
        ),
    ]
