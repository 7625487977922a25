"""Credit notes that void others, and the triggers that count what stands alone."""

import django.db.models.deletion
from django.db import migrations, models

from controlplane.billing.migrations import _triggers, _triggers_0004, _triggers_0009


def protect(apps, schema_editor):
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for statement in _triggers_0009.POSTGRESQL:
                cursor.execute(statement)
            return
        for name, body in _triggers_0009.SQLITE.items():
            cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
            cursor.execute(f"CREATE TRIGGER {name} {body}")


def unprotect(apps, schema_editor):
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            for name in _triggers_0009.SQLITE:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
    _triggers.remove(connection, _triggers_0004)


def as_before(apps, schema_editor):
    _triggers.make(schema_editor.connection, _triggers_0004)


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0008_parties"),
    ]

    operations = [
        # On SQLite a table that loses a column is made anew, without its triggers.
        migrations.RunPython(migrations.RunPython.noop, as_before, elidable=False),
        migrations.AddField(
            model_name="creditnote",
            name="voids",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                help_text="The credit note that this one takes back, whole; null of most.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="voidings",
                to="billing.creditnote",
            ),
        ),
        migrations.AddIndex(
            model_name="creditnote",
            index=models.Index(
                condition=models.Q(("voids__isnull", False)), fields=["voids"], name="credit_note_voids"
            ),
        ),
        migrations.RunPython(protect, unprotect, elidable=False),
    ]
