from decimal import Decimal

import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
from django.db import migrations, models

from controlplane.billing.ledger import append_only


def protect(apps, schema_editor):
    append_only.install(schema_editor.connection)


def unprotect(apps, schema_editor):
    append_only.remove(schema_editor.connection)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="CreditNote",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "seller",
                    models.JSONField(
                        blank=True, help_text="Seller details at that time; null if none were set.", null=True
                    ),
                ),
                (
                    "buyer",
                    models.JSONField(
                        blank=True,
                        help_text="Billing details at that time; null if none were set.",
                        null=True,
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("number", models.BigIntegerField(help_text="Consecutive per tenant, from 1.")),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("duplicated_charge", "Duplicated Charge"),
                            ("product_unsatisfactory", "Product Unsatisfactory"),
                            ("order_change", "Order Change"),
                            ("order_cancellation", "Order Cancellation"),
                            ("fraudulent_charge", "Fraudulent Charge"),
                            ("other", "Other"),
                        ],
                        max_length=25,
                    ),
                ),
                ("memo", models.CharField(blank=True, max_length=500)),
                ("currency", models.CharField(max_length=3)),
                ("net_nano", models.BigIntegerField(help_text="Sum of the lines, without tax.")),
                ("tax_nano", models.BigIntegerField(help_text="In whole minor units of the currency.")),
                (
                    "pre_payment_nano",
                    models.BigIntegerField(help_text="Deducted from the open amount of the invoice."),
                ),
                ("post_payment_nano", models.BigIntegerField(help_text="Returned from the paid amount.")),
                (
                    "post_payment_as",
                    models.CharField(
                        choices=[("balance", "Balance"), ("credit", "Credit"), ("refund", "Refund")],
                        default="balance",
                        max_length=10,
                    ),
                ),
                ("issued_at", models.DateTimeField()),
                (
                    "voids",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="The credit note that this one voids, if any.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="voidings",
                        to="billing.creditnote",
                    ),
                ),
            ],
            options={"ordering": ("-id",)},
        ),
        migrations.CreateModel(
            name="HostingPrice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("adapter_hour", "Adapter Hour"),
                            ("gpu_hour", "Gpu Hour"),
                            ("storage_gb_hour", "Storage Gb Hour"),
                        ],
                        max_length=20,
                    ),
                ),
                ("base_model", models.CharField(blank=True, help_text="'' for all.", max_length=63)),
                (
                    "adapter",
                    models.CharField(
                        blank=True, help_text="`<tenant>/<adapter>`; '' for all.", max_length=130
                    ),
                ),
                ("backend", models.CharField(blank=True, help_text="'' for all.", max_length=63)),
                ("effective_from", models.DateField(help_text="UTC day.")),
                (
                    "nano",
                    models.BigIntegerField(
                        help_text="Nano-units per hour.",
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("kind", "base_model", "adapter", "backend", "effective_from")},
        ),
        migrations.CreateModel(
            name="Invoice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "seller",
                    models.JSONField(
                        blank=True, help_text="Seller details at that time; null if none were set.", null=True
                    ),
                ),
                (
                    "buyer",
                    models.JSONField(
                        blank=True,
                        help_text="Billing details at that time; null if none were set.",
                        null=True,
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("month", models.DateField(help_text="First day of the UTC month.")),
                (
                    "number",
                    models.BigIntegerField(
                        blank=True, help_text="Consecutive per tenant, from 1.", null=True
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[("draft", "Draft"), ("finalized", "Finalized")],
                        default="draft",
                        max_length=10,
                    ),
                ),
                ("currency", models.CharField(max_length=3)),
                (
                    "lines_nano",
                    models.BigIntegerField(default=0, help_text="Sum of the lines that have a price."),
                ),
                (
                    "carried_in_nano",
                    models.BigIntegerField(default=0, help_text="Carried over from the previous invoice."),
                ),
                ("credits_nano", models.BigIntegerField(default=0, help_text="Paid by credits.")),
                (
                    "prepaid_nano",
                    models.BigIntegerField(default=0, help_text="Paid from the prepaid balance."),
                ),
                (
                    "shortfall_nano",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Deficit of the prepaid balance that this invoice also charges, in whole minor units, without tax.",
                    ),
                ),
                (
                    "due_nano",
                    models.BigIntegerField(default=0, help_text="Amount to pay, in whole minor units."),
                ),
                (
                    "carried_out_nano",
                    models.BigIntegerField(
                        default=0, help_text="Carried to the next invoice: below one minor unit, or negative."
                    ),
                ),
                (
                    "tax_nano",
                    models.BigIntegerField(db_default=0, default=0, help_text="Tax, in whole minor units."),
                ),
                (
                    "tax_kind",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("taxed", "Taxed"),
                            ("reverse_charge", "Reverse Charge"),
                            ("exempt", "Exempt"),
                        ],
                        db_default="",
                        default="",
                        help_text="Empty without a tax treatment.",
                        max_length=15,
                    ),
                ),
                ("tax_label", models.CharField(blank=True, db_default="", default="", max_length=30)),
                (
                    "tax_rate_percent",
                    models.DecimalField(
                        db_default=Decimal("0"), decimal_places=4, default=Decimal("0"), max_digits=7
                    ),
                ),
                ("tax_number", models.CharField(blank=True, db_default="", default="", max_length=40)),
                ("tax_text", models.CharField(blank=True, db_default="", default="", max_length=300)),
                ("unpriced", models.BooleanField(default=False, help_text="True if a line has no price.")),
                ("drafted_at", models.DateTimeField()),
                ("finalized_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"ordering": ("-id",)},
        ),
        migrations.CreateModel(
            name="InvoiceLine",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("position", models.IntegerField(help_text="From 1.")),
                (
                    "month",
                    models.DateField(
                        help_text="Month of the usage. A month before the invoice's is an adjustment."
                    ),
                ),
                ("project", models.CharField(blank=True, max_length=200)),
                ("key_id", models.CharField(blank=True, max_length=200)),
                (
                    "key_name",
                    models.CharField(
                        blank=True,
                        help_text="Key name at finalization. Null if finalized before names were stored.",
                        max_length=100,
                        null=True,
                    ),
                ),
                (
                    "adapter",
                    models.CharField(
                        blank=True, help_text="Adapter name; '' for the base model.", max_length=200
                    ),
                ),
                ("base_model", models.CharField(blank=True, max_length=200)),
                ("backend", models.CharField(blank=True, max_length=200)),
                ("item", models.CharField(max_length=20)),
                ("quantity", models.BigIntegerField()),
                (
                    "unit_nano",
                    models.BigIntegerField(
                        help_text="Price of `per` units of the item; null if unpriced.", null=True
                    ),
                ),
                ("per", models.BigIntegerField()),
                ("amount_nano", models.BigIntegerField(help_text="Null: unpriced.", null=True)),
            ],
            options={"ordering": ("position",)},
        ),
        migrations.CreateModel(
            name="JournalEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("number", models.BigIntegerField(help_text="Consecutive per tenant, from 1.")),
                ("at", models.DateTimeField()),
                ("day", models.DateField(help_text="UTC day that the entry applies to.")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("usage", "Usage"),
                            ("reversal", "Reversal"),
                            ("grant", "Grant"),
                            ("expiry", "Expiry"),
                            ("deposit", "Deposit"),
                            ("payment", "Payment"),
                            ("credit_drawn", "Credit Drawn"),
                            ("prepaid_drawn", "Prepaid Drawn"),
                            ("invoiced", "Invoiced"),
                            ("shortfall", "Shortfall"),
                            ("tax", "Tax"),
                            ("credit_note", "Credit Note"),
                        ],
                        max_length=15,
                    ),
                ),
                (
                    "debit",
                    models.CharField(
                        choices=[
                            ("unbilled", "Unbilled"),
                            ("receivable", "Receivable"),
                            ("cash", "Cash"),
                            ("prepaid", "Prepaid"),
                            ("credit", "Credit"),
                            ("revenue", "Revenue"),
                            ("tax", "Tax"),
                            ("allowance", "Allowance"),
                            ("promotion", "Promotion"),
                        ],
                        max_length=12,
                    ),
                ),
                (
                    "credit",
                    models.CharField(
                        choices=[
                            ("unbilled", "Unbilled"),
                            ("receivable", "Receivable"),
                            ("cash", "Cash"),
                            ("prepaid", "Prepaid"),
                            ("credit", "Credit"),
                            ("revenue", "Revenue"),
                            ("tax", "Tax"),
                            ("allowance", "Allowance"),
                            ("promotion", "Promotion"),
                        ],
                        max_length=12,
                    ),
                ),
                ("amount_nano", models.BigIntegerField()),
                ("currency", models.CharField(max_length=3)),
                ("memo", models.CharField(blank=True, max_length=200)),
            ],
            options={"verbose_name_plural": "journal entries", "ordering": ("-id",)},
        ),
        migrations.CreateModel(
            name="LedgerCheckpoint",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("through", models.BigIntegerField(help_text="Number of the last entry included.")),
                ("sums", models.JSONField(help_text="Debits minus credits in nano-units, by account.")),
            ],
        ),
        migrations.CreateModel(
            name="LedgerHead",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("entries", models.BigIntegerField(default=0, help_text="Number of the newest entry.")),
                ("invoices", models.BigIntegerField(default=0, help_text="Number of the newest invoice.")),
                (
                    "credit_notes",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Number of the newest credit note."
                    ),
                ),
                (
                    "closed_through",
                    models.DateField(blank=True, help_text="First day of the last closed month.", null=True),
                ),
            ],
        ),
        migrations.CreateModel(
            name="PostedDay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("day", models.DateField()),
                (
                    "mark",
                    models.CharField(help_text="Fingerprint of the quantities and prices.", max_length=200),
                ),
                (
                    "unpriced",
                    models.BooleanField(
                        help_text="True if some usage has no price. Null for entries from releases that did not record it.",
                        null=True,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="PrepaidMark",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("peak_nano", models.BigIntegerField(help_text="Highest balance since the last top-up.")),
                (
                    "top_ups",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Number of top-ups. 0 for rows from releases that did not count them.",
                    ),
                ),
                (
                    "told",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Highest announced percentage used; 0 if none."
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Price",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("base_model", models.CharField(max_length=63)),
                (
                    "adapter",
                    models.CharField(
                        blank=True,
                        help_text="`<tenant>/<adapter>`; '' for the base model and all its adapters.",
                        max_length=130,
                    ),
                ),
                (
                    "backend",
                    models.CharField(
                        blank=True,
                        db_default="",
                        help_text="Kind of backend; '' for all backends.",
                        max_length=63,
                    ),
                ),
                ("effective_from", models.DateField(help_text="UTC day.")),
                (
                    "input_nano",
                    models.BigIntegerField(
                        help_text="Per prompt token.",
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "cached_input_nano",
                    models.BigIntegerField(validators=[django.core.validators.MinValueValidator(0)]),
                ),
                (
                    "output_nano",
                    models.BigIntegerField(validators=[django.core.validators.MinValueValidator(0)]),
                ),
                (
                    "request_nano",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Per attempt, unless it ended in an error.",
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("base_model", "adapter", "backend", "effective_from")},
        ),
        migrations.CreateModel(
            name="PriceBook",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63, unique=True)),
                ("currency", models.CharField(default="USD", max_length=3)),
                (
                    "is_default",
                    models.BooleanField(
                        default=False, help_text="Applies to all tenants, from today or a later day."
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="PriceBookTerm",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tenant",
                    models.CharField(blank=True, help_text="Tenant id; '' for all tenants.", max_length=63),
                ),
                ("starts", models.DateField(help_text="First UTC day.")),
                (
                    "ends",
                    models.DateField(
                        blank=True, help_text="Last UTC day, included; null for no end.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("tenant", "starts")},
        ),
        migrations.CreateModel(
            name="TaxTreatment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("starts", models.DateField(help_text="First UTC day.")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("taxed", "Taxed"),
                            ("reverse_charge", "Reverse Charge"),
                            ("exempt", "Exempt"),
                        ],
                        max_length=15,
                    ),
                ),
                (
                    "label",
                    models.CharField(
                        help_text="Name of the tax on documents, such as VAT, GST or Sales tax.",
                        max_length=30,
                    ),
                ),
                (
                    "rate_percent",
                    models.DecimalField(
                        decimal_places=4,
                        default=0,
                        help_text="Exact decimal such as 8.875; 0 unless kind is taxed.",
                        max_digits=7,
                    ),
                ),
                (
                    "tax_number",
                    models.CharField(
                        blank=True,
                        help_text="The tenant's tax number, as printed on documents.",
                        max_length=40,
                    ),
                ),
                (
                    "text",
                    models.CharField(
                        blank=True, help_text="Legal text to print on the document.", max_length=300
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("-starts",)},
        ),
        migrations.CreateModel(
            name="BillingParty",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tenant",
                    models.CharField(
                        blank=True, help_text="Tenant id; '' for the seller (the operator).", max_length=63
                    ),
                ),
                ("starts", models.DateField(help_text="First UTC day.")),
                ("legal_name", models.CharField(max_length=200)),
                (
                    "address",
                    models.CharField(
                        help_text="Postal address, one line per line of the address.", max_length=500
                    ),
                ),
                (
                    "contact",
                    models.CharField(
                        blank=True,
                        help_text="E-mail address or phone number for billing questions.",
                        max_length=200,
                    ),
                ),
                ("tax_number", models.CharField(blank=True, help_text="The seller's.", max_length=40)),
                (
                    "registration",
                    models.CharField(
                        blank=True, help_text="Company register and number of the seller.", max_length=200
                    ),
                ),
                (
                    "payment_text",
                    models.CharField(
                        blank=True, help_text="Payment instructions of the seller.", max_length=500
                    ),
                ),
                (
                    "reference",
                    models.CharField(
                        blank=True,
                        help_text="Purchase order number or another reference that the tenant wants on documents.",
                        max_length=100,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-starts",),
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "starts"), name="billing_party_once_a_day")
                ],
            },
        ),
        migrations.CreateModel(
            name="BudgetNotice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("scope", models.CharField(help_text="Scope id, as in the route table.", max_length=100)),
                (
                    "period",
                    models.CharField(
                        help_text="UTC: `2026-11` or `2026-11-21`; for a prepaid balance, the number of top-ups.",
                        max_length=10,
                    ),
                ),
                ("percent", models.PositiveSmallIntegerField()),
                (
                    "budget_nano",
                    models.BigIntegerField(
                        help_text="The budget at that time; a changed budget is announced again."
                    ),
                ),
                ("spent_nano", models.BigIntegerField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "notify_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the mail is due. Null if none is due or it was sent.",
                        null=True,
                    ),
                ),
                ("notify_attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "notified",
                    models.JSONField(
                        blank=True,
                        help_text="Ids of users who have received the mail or no longer need it.",
                        null=True,
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("notify_at__isnull", False)),
                        fields=["notify_at"],
                        name="budget_notice_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("scope", "period", "percent", "budget_nano"), name="budget_notice_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="CreditGrant",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("amount_nano", models.BigIntegerField()),
                ("starts", models.DateField(help_text="First UTC day whose usage it pays for.")),
                (
                    "expires_on",
                    models.DateField(
                        blank=True, help_text="Last UTC day, included; null for no end.", null=True
                    ),
                ),
                ("note", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["tenant", "-id"], name="credit_grant_list")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("amount_nano__gt", 0)), name="credit_grant_positive"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("expires_on", None), ("expires_on__gte", models.F("starts")), _connector="OR"
                        ),
                        name="credit_grant_order",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CreditNotePdf",
            fields=[
                (
                    "render_at",
                    models.DateTimeField(
                        help_text="When rendering is due. Null once it is rendered.", null=True
                    ),
                ),
                (
                    "attempts",
                    models.PositiveIntegerField(default=0, help_text="Attempts to render it so far."),
                ),
                ("key", models.CharField(blank=True, help_text="Key in the artifact store.", max_length=200)),
                ("size", models.BigIntegerField(default=0)),
                ("sha256", models.CharField(blank=True, max_length=64)),
                ("rendered_at", models.DateTimeField(null=True)),
                (
                    "credit_note",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="pdf",
                        serialize=False,
                        to="billing.creditnote",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="CreditNoteLine",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("position", models.IntegerField(help_text="From 1.")),
                ("amount_nano", models.BigIntegerField(help_text="Without tax.")),
                (
                    "credit_note",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="lines",
                        to="billing.creditnote",
                    ),
                ),
            ],
            options={"ordering": ("position",)},
        ),
        migrations.CreateModel(
            name="InvoicePdf",
            fields=[
                (
                    "render_at",
                    models.DateTimeField(
                        help_text="When rendering is due. Null once it is rendered.", null=True
                    ),
                ),
                (
                    "attempts",
                    models.PositiveIntegerField(default=0, help_text="Attempts to render it so far."),
                ),
                ("key", models.CharField(blank=True, help_text="Key in the artifact store.", max_length=200)),
                ("size", models.BigIntegerField(default=0)),
                ("sha256", models.CharField(blank=True, max_length=64)),
                ("rendered_at", models.DateTimeField(null=True)),
                (
                    "invoice",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="pdf",
                        serialize=False,
                        to="billing.invoice",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="invoice", index=models.Index(fields=["tenant", "-id"], name="invoice_list")
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.UniqueConstraint(fields=("tenant", "month"), name="invoice_once_a_month"),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.UniqueConstraint(fields=("tenant", "number"), name="invoice_number_once"),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("finalized_at", None), ("number", None), ("status", "draft")),
                    models.Q(("finalized_at__isnull", False), ("number__gte", 1), ("status", "finalized")),
                    _connector="OR",
                ),
                name="invoice_number_when_final",
            ),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "due_nano",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                django.db.models.expressions.CombinedExpression(
                                    django.db.models.expressions.CombinedExpression(
                                        django.db.models.expressions.CombinedExpression(
                                            django.db.models.expressions.CombinedExpression(
                                                models.F("lines_nano"), "+", models.F("carried_in_nano")
                                            ),
                                            "+",
                                            models.F("tax_nano"),
                                        ),
                                        "+",
                                        models.F("shortfall_nano"),
                                    ),
                                    "-",
                                    models.F("credits_nano"),
                                ),
                                "-",
                                models.F("prepaid_nano"),
                            ),
                            "-",
                            models.F("carried_out_nano"),
                        ),
                    )
                ),
                name="invoice_adds_up",
            ),
        ),
        migrations.AddField(
            model_name="creditnote",
            name="invoice",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="credit_notes", to="billing.invoice"
            ),
        ),
        migrations.AddField(
            model_name="invoiceline",
            name="invoice",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="lines", to="billing.invoice"
            ),
        ),
        migrations.AddField(
            model_name="creditnoteline",
            name="invoice_line",
            field=models.ForeignKey(
                help_text="Null for the invoice as a whole.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="credited",
                to="billing.invoiceline",
            ),
        ),
        migrations.CreateModel(
            name="UsagePosting",
            fields=[
                (
                    "entry",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="usage",
                        serialize=False,
                        to="billing.journalentry",
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("day", models.DateField()),
                ("month", models.DateField(help_text="First day of the month of its invoice.")),
                ("project", models.CharField(blank=True, max_length=200)),
                ("key_id", models.CharField(blank=True, max_length=200)),
                (
                    "adapter",
                    models.CharField(
                        blank=True, help_text="Adapter name; '' for the base model.", max_length=200
                    ),
                ),
                ("base_model", models.CharField(blank=True, max_length=200)),
                ("backend", models.CharField(blank=True, max_length=200)),
                ("item", models.CharField(help_text="Billed item; see `billing.items`.", max_length=20)),
                ("quantity", models.BigIntegerField(help_text="Negative in a reversal.")),
                ("unit_nano", models.BigIntegerField(help_text="Price of `per` units of the item.")),
                ("per", models.BigIntegerField()),
                (
                    "amount_nano",
                    models.BigIntegerField(help_text="Amount of the entry; negative in a reversal."),
                ),
            ],
        ),
        migrations.AddField(
            model_name="journalentry",
            name="credit_note",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="entries",
                to="billing.creditnote",
            ),
        ),
        migrations.AddField(
            model_name="journalentry",
            name="grant",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="entries",
                to="billing.creditgrant",
            ),
        ),
        migrations.AddField(
            model_name="journalentry",
            name="invoice",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="entries",
                to="billing.invoice",
            ),
        ),
        migrations.AddField(
            model_name="journalentry",
            name="reverses",
            field=models.OneToOneField(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="reversal",
                to="billing.journalentry",
            ),
        ),
        migrations.AddConstraint(
            model_name="postedday",
            constraint=models.UniqueConstraint(fields=("tenant", "day"), name="posted_day_once"),
        ),
        migrations.AddConstraint(
            model_name="pricebook",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_default", True)),
                fields=("is_default",),
                name="price_book_one_default",
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="book",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="prices", to="billing.pricebook"
            ),
        ),
        migrations.AddField(
            model_name="hostingprice",
            name="book",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="hosting_prices",
                to="billing.pricebook",
            ),
        ),
        migrations.AddField(
            model_name="pricebookterm",
            name="book",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="terms", to="billing.pricebook"
            ),
        ),
        migrations.AddConstraint(
            model_name="taxtreatment",
            constraint=models.UniqueConstraint(fields=("tenant", "starts"), name="tax_treatment_once_a_day"),
        ),
        migrations.AddConstraint(
            model_name="taxtreatment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("rate_percent__gte", 0),
                    ("rate_percent__lte", 100),
                    models.Q(("kind", "taxed"), ("rate_percent", 0), _connector="OR"),
                ),
                name="tax_treatment_rate",
            ),
        ),
        migrations.AddIndex(
            model_name="creditnotepdf",
            index=models.Index(
                condition=models.Q(("render_at__isnull", False)),
                fields=["render_at"],
                name="credit_note_pdf_due",
            ),
        ),
        migrations.AddIndex(
            model_name="invoicepdf",
            index=models.Index(
                condition=models.Q(("render_at__isnull", False)), fields=["render_at"], name="invoice_pdf_due"
            ),
        ),
        migrations.AddIndex(
            model_name="creditnote", index=models.Index(fields=["tenant", "-id"], name="credit_note_list")
        ),
        migrations.AddIndex(
            model_name="creditnote",
            index=models.Index(
                condition=models.Q(("voids__isnull", False)), fields=["voids"], name="credit_note_voids"
            ),
        ),
        migrations.AddConstraint(
            model_name="creditnote",
            constraint=models.UniqueConstraint(fields=("tenant", "number"), name="credit_note_number_once"),
        ),
        migrations.AddConstraint(
            model_name="creditnote",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("net_nano__gt", 0),
                    ("number__gte", 1),
                    ("post_payment_nano__gte", 0),
                    ("pre_payment_nano__gte", 0),
                    ("tax_nano__gte", 0),
                ),
                name="credit_note_positive",
            ),
        ),
        migrations.AddConstraint(
            model_name="creditnote",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "net_nano",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("pre_payment_nano"), "+", models.F("post_payment_nano")
                            ),
                            "-",
                            models.F("tax_nano"),
                        ),
                    )
                ),
                name="credit_note_adds_up",
            ),
        ),
        migrations.AddConstraint(
            model_name="invoiceline",
            constraint=models.UniqueConstraint(fields=("invoice", "position"), name="invoice_line_once"),
        ),
        migrations.AddConstraint(
            model_name="creditnoteline",
            constraint=models.UniqueConstraint(
                fields=("credit_note", "position"), name="credit_note_line_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="creditnoteline",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount_nano__gt", 0)), name="credit_note_line_positive"
            ),
        ),
        migrations.AddIndex(
            model_name="usageposting", index=models.Index(fields=["tenant", "day"], name="usage_posting_day")
        ),
        migrations.AddIndex(
            model_name="usageposting",
            index=models.Index(fields=["tenant", "month"], name="usage_posting_month"),
        ),
        migrations.AddIndex(
            model_name="journalentry", index=models.Index(fields=["tenant", "-id"], name="journal_list")
        ),
        migrations.AddIndex(
            model_name="journalentry",
            index=models.Index(
                condition=models.Q(("credit__in", ("prepaid", "credit"))),
                fields=["tenant"],
                name="journal_top_ups",
            ),
        ),
        migrations.AddConstraint(
            model_name="journalentry",
            constraint=models.UniqueConstraint(fields=("tenant", "number"), name="journal_number_once"),
        ),
        migrations.AddConstraint(
            model_name="journalentry",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount_nano__gt", 0)), name="journal_positive"
            ),
        ),
        migrations.AddConstraint(
            model_name="journalentry",
            constraint=models.CheckConstraint(
                condition=models.Q(("debit", models.F("credit")), _negated=True), name="journal_two_accounts"
            ),
        ),
        migrations.AddConstraint(
            model_name="journalentry",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "credit__in",
                        [
                            "unbilled",
                            "receivable",
                            "cash",
                            "prepaid",
                            "credit",
                            "revenue",
                            "tax",
                            "allowance",
                            "promotion",
                        ],
                    ),
                    (
                        "debit__in",
                        [
                            "unbilled",
                            "receivable",
                            "cash",
                            "prepaid",
                            "credit",
                            "revenue",
                            "tax",
                            "allowance",
                            "promotion",
                        ],
                    ),
                ),
                name="journal_known_accounts",
            ),
        ),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.UniqueConstraint(
                fields=("book", "base_model", "adapter", "backend", "effective_from"),
                name="price_once_by_backend",
            ),
        ),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("cached_input_nano__gte", 0),
                    ("input_nano__gte", 0),
                    ("output_nano__gte", 0),
                    ("request_nano__gte", 0),
                ),
                name="price_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="hostingprice",
            constraint=models.UniqueConstraint(
                fields=("book", "kind", "base_model", "adapter", "backend", "effective_from"),
                name="hosting_price_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="hostingprice",
            constraint=models.CheckConstraint(
                condition=models.Q(("nano__gte", 0)), name="hosting_price_not_negative"
            ),
        ),
        migrations.AddConstraint(
            model_name="pricebookterm",
            constraint=models.UniqueConstraint(fields=("tenant", "starts"), name="price_book_term_once"),
        ),
        migrations.AddConstraint(
            model_name="pricebookterm",
            constraint=models.CheckConstraint(
                condition=models.Q(("ends", None), ("ends__gte", models.F("starts")), _connector="OR"),
                name="price_book_term_order",
            ),
        ),
        migrations.RunPython(protect, unprotect),
    ]
