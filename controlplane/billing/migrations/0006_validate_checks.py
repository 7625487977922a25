"""Looks at the rows that were there before 0004, in a transaction of its own."""

from django.db import migrations

from controlplane.billing.migrations._constraints import ValidateCheck


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0005_checkpoints_and_prepaid_marks"),
    ]

    operations = [
        ValidateCheck("journalentry", name="journal_known_accounts"),
        ValidateCheck("invoice", name="invoice_adds_up"),
    ]
