"""The default book becomes everyone's for all days, as it was."""

import datetime as dt

from django.db import migrations


def default_to_term(apps, schema_editor):
    PriceBook = apps.get_model("billing", "PriceBook")
    PriceBookTerm = apps.get_model("billing", "PriceBookTerm")
    for book in PriceBook.objects.filter(is_default=True):
        PriceBookTerm.objects.get_or_create(tenant="", starts=dt.date.min, defaults={"book": book})


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_ledger_and_invoices")]

    operations = [
        migrations.RunPython(default_to_term, migrations.RunPython.noop, elidable=False),
        # The triggers of today stand on tables of a later migration, which makes them.
    ]
