"""Looks at the invoices that were there before 0010, in a transaction of its own."""

from django.db import migrations

from controlplane.billing.migrations._constraints import ValidateCheck


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0010_shortfall"),
    ]

    operations = [
        ValidateCheck("invoice", name="invoice_adds_up"),
    ]
