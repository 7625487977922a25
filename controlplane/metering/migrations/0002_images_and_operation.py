"""Usage by operation, and the number of images.

The sums' unique constraints gain a column. An ingester of the previous release cannot add to the sums from
then on; its events wait in the stream for the new one.
"""

from __future__ import annotations

from typing import Final

from django.core.management.base import CommandError
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_NAMES: Final = ("project", "key_id", "adapter", "alias", "arm", "base_model")
_REST: Final = ("backend", "status")


def _images() -> models.BigIntegerField[int, int]:
    return models.BigIntegerField(db_default=0, default=0)


def _operation() -> models.CharField[str, str]:
    return models.CharField(db_default="", default="", max_length=200)


def _once(name: str, *when: str) -> models.UniqueConstraint:
    return models.UniqueConstraint(fields=("tenant", *when, *_NAMES, "operation", *_REST), name=name)


def refuse_older_tables(apps: object, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Raise CommandError for tables of an earlier 0001_initial, into which later migrations were merged."""
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "metering_usageeventrow")
    if "reasoning_tokens" not in {column.name for column in columns}:
        raise CommandError(
            "This database was made by an earlier development version and cannot be migrated: start with an "
            "empty database."
        )


class Migration(migrations.Migration):
    dependencies = [("metering", "0001_initial")]

    operations = [
        migrations.RunPython(refuse_older_tables, migrations.RunPython.noop),
        migrations.AddField("usageeventrow", "images", _images()),
        migrations.AddField("usageeventrow", "operation", _operation()),
        migrations.AddField("usagehour", "images", _images()),
        migrations.AddField("usagehour", "operation", _operation()),
        migrations.AddField("usagerollup", "images", _images()),
        migrations.AddField("usagerollup", "operation", _operation()),
        migrations.RemoveConstraint("usagehour", "usage_hour_once"),
        migrations.AddConstraint("usagehour", _once("usage_hour_once", "day", "hour")),
        migrations.RemoveConstraint("usagerollup", "usage_rollup_once"),
        migrations.AddConstraint("usagerollup", _once("usage_rollup_once", "day")),
    ]
