"""Row policies of credit notes and of tenants' taxes."""

from django.db import migrations

from controlplane.platform.row_security.policies import RowPolicy, owned_by, owned_through


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0004_credit_notes_and_taxes"),
        ("row_security", "0004_billing"),
    ]

    operations = [
        RowPolicy("billing_creditnote", owned_by("tenant")),
        RowPolicy("billing_taxtreatment", owned_by("tenant")),
        RowPolicy(
            "billing_creditnoteline",
            owned_through("billing_creditnoteline", "credit_note_id", "billing_creditnote"),
        ),
        RowPolicy(
            "billing_creditnotepdf",
            owned_through("billing_creditnotepdf", "credit_note_id", "billing_creditnote"),
        ),
    ]
