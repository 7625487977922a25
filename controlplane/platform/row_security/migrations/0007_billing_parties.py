"""Row policy of who is billed; the seller's rows are the operator's alone."""

from django.db import migrations

from controlplane.platform.row_security.policies import RowPolicy, owned_by


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0008_parties"),
        ("row_security", "0006_checkpoints"),
    ]

    operations = [
        RowPolicy("billing_billingparty", owned_by("tenant")),
    ]
