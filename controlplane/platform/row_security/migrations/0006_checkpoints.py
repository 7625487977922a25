"""Row policies of balances that are kept, and of what was told of prepaid money."""

from django.db import migrations

from controlplane.platform.row_security.policies import RowPolicy, owned_by


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0005_checkpoints_and_prepaid_marks"),
        ("row_security", "0005_credit_notes"),
    ]

    operations = [
        RowPolicy("billing_ledgercheckpoint", owned_by("tenant")),
        RowPolicy("billing_prepaidmark", owned_by("tenant")),
    ]
