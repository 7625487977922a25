"""The default book becomes everyone's for all days, as it was; the books become append-only."""

import datetime as dt

from django.db import migrations

from controlplane.billing.migrations import _triggers, _triggers_0003


def default_to_term(apps, schema_editor):
    PriceBook = apps.get_model("billing", "PriceBook")
    PriceBookTerm = apps.get_model("billing", "PriceBookTerm")
    for book in PriceBook.objects.filter(is_default=True):
        PriceBookTerm.objects.get_or_create(tenant="", starts=dt.date.min, defaults={"book": book})


def protect(apps, schema_editor):
    _triggers.make(schema_editor.connection, _triggers_0003)


def unprotect(apps, schema_editor):
    _triggers.remove(schema_editor.connection, _triggers_0003)


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_ledger_and_invoices")]

    operations = [
        migrations.RunPython(default_to_term, migrations.RunPython.noop, elidable=False),
        migrations.RunPython(protect, unprotect, elidable=False),
    ]
