"""An index by time on PostgreSQL: a rollout reads the newest events of some copies every few seconds."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def index(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """BRIN: events come in the order of their time, and an insert pays next to nothing for it."""
    if schema_editor.connection.vendor == "postgresql":
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(
                "CREATE INDEX IF NOT EXISTS usage_event_started ON metering_usageeventrow USING brin (started_at)"
            )


class Migration(migrations.Migration):
    dependencies = [("metering", "0006_hosting")]

    operations = [migrations.RunPython(index, migrations.RunPython.noop)]
