"""PostgreSQL's schema of usage events beyond the models: daily partitions, a BRIN index and fill factors."""

from __future__ import annotations

from typing import Final

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

_TABLE: Final = "metering_usageeventrow"
_WHOLE: Final = "metering_usageeventrow_whole"
_STATEMENTS: Final = (
    f"ALTER TABLE {_TABLE} RENAME TO {_WHOLE}",
    f"CREATE TABLE {_TABLE} (LIKE {_WHOLE} INCLUDING DEFAULTS) PARTITION BY RANGE (day)",
    f"DROP TABLE {_WHOLE}",
    # A partitioned table takes no identity column before PostgreSQL 17: a sequence stands for it.
    f"CREATE SEQUENCE metering_usageevent_id_seq OWNED BY {_TABLE}.id",
    f"ALTER TABLE {_TABLE} ALTER COLUMN id SET DEFAULT nextval('metering_usageevent_id_seq')",
    # A key of a partitioned table must contain the partition's column.
    f"ALTER TABLE {_TABLE} ADD PRIMARY KEY (id, day)",
    # Events arrive in the order of their time, so that a BRIN index costs an insert next to nothing.
    f"CREATE INDEX usage_event_started ON {_TABLE} USING brin (started_at)",
    # Rollups are updated in place as long as there is room on the page.
    "ALTER TABLE metering_usagerollup SET (fillfactor = 70)",
    "ALTER TABLE metering_usagehour SET (fillfactor = 70)",
    "ALTER TABLE metering_adapterhour SET (fillfactor = 70)",
    "ALTER TABLE metering_latencyhour SET (fillfactor = 70)",
)


def partition_events(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Replace the empty table of usage events by a partitioned one; do nothing on SQLite."""
    if schema_editor.connection.vendor == "postgresql":
        with schema_editor.connection.cursor() as cursor:
            for statement in _STATEMENTS:
                cursor.execute(statement)
