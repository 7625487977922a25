"""Row policies of the books, invoices, and who was told of budgets."""

from django.db import migrations

from controlplane.platform.row_security.policies import TENANT, RowPolicy, owned_by, owned_through


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0003_terms_and_triggers"),
        ("row_security", "0003_name_search"),
    ]

    operations = [
        *(
            RowPolicy(table, owned_by("tenant"))
            for table in (
                "billing_budgetnotice",
                "billing_creditgrant",
                "billing_invoice",
                "billing_journalentry",
                "billing_ledgerhead",
                "billing_postedday",
                "billing_usageposting",
            )
        ),
        RowPolicy(
            "billing_invoiceline", owned_through("billing_invoiceline", "invoice_id", "billing_invoice")
        ),
        RowPolicy("billing_invoicepdf", owned_through("billing_invoicepdf", "invoice_id", "billing_invoice")),
        # Everyone's terms are everyone's to read: with them a tenant's use is priced. The caller must be known.
        RowPolicy(
            "billing_pricebookterm",
            f"{owned_by('tenant')} OR (tenant = '' AND (SELECT {TENANT}) IS NOT NULL)",
        ),
    ]
