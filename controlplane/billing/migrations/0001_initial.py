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
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("seller", models.JSONField(null=True)),
                ("buyer", models.JSONField(null=True)),
                ("tenant", models.CharField(max_length=63)),
                ("number", models.BigIntegerField()),
                ("reason", models.CharField(max_length=25)),
                ("memo", models.CharField(max_length=500)),
                ("currency", models.CharField(max_length=3)),
                ("net_nano", models.BigIntegerField()),
                ("tax_nano", models.BigIntegerField()),
                ("pre_payment_nano", models.BigIntegerField()),
                ("post_payment_nano", models.BigIntegerField()),
                ("post_payment_as", models.CharField(default="balance", max_length=10)),
                ("issued_at", models.DateTimeField()),
                (
                    "voids",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="billing.creditnote",
                    ),
                ),
            ],
            options={"ordering": ("-id",)},
        ),
        migrations.CreateModel(
            name="HostingPrice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=20)),
                ("base_model", models.CharField(max_length=63)),
                ("adapter", models.CharField(max_length=130)),
                ("backend", models.CharField(max_length=63)),
                ("effective_from", models.DateField()),
                ("nano", models.BigIntegerField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("kind", "base_model", "adapter", "backend", "effective_from")},
        ),
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("seller", models.JSONField(null=True)),
                ("buyer", models.JSONField(null=True)),
                ("tenant", models.CharField(max_length=63)),
                ("month", models.DateField()),
                ("number", models.BigIntegerField(null=True)),
                ("status", models.CharField(default="draft", max_length=10)),
                ("currency", models.CharField(max_length=3)),
                ("lines_nano", models.BigIntegerField(default=0)),
                ("carried_in_nano", models.BigIntegerField(default=0)),
                ("credits_nano", models.BigIntegerField(default=0)),
                ("prepaid_nano", models.BigIntegerField(default=0)),
                ("shortfall_nano", models.BigIntegerField(db_default=0, default=0)),
                ("due_nano", models.BigIntegerField(default=0)),
                ("carried_out_nano", models.BigIntegerField(default=0)),
                ("tax_nano", models.BigIntegerField(db_default=0, default=0)),
                ("tax_kind", models.CharField(db_default="", default="", max_length=15)),
                ("tax_label", models.CharField(db_default="", default="", max_length=30)),
                (
                    "tax_rate_percent",
                    models.DecimalField(
                        db_default=Decimal("0"), decimal_places=4, default=Decimal("0"), max_digits=7
                    ),
                ),
                ("tax_number", models.CharField(db_default="", default="", max_length=40)),
                ("tax_text", models.CharField(db_default="", default="", max_length=300)),
                ("unpriced", models.BooleanField(default=False)),
                ("drafted_at", models.DateTimeField()),
                ("finalized_at", models.DateTimeField(null=True)),
            ],
            options={"ordering": ("-id",)},
        ),
        migrations.CreateModel(
            name="InvoiceLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("position", models.IntegerField()),
                ("month", models.DateField()),
                ("project", models.CharField(max_length=200)),
                ("key_id", models.CharField(max_length=200)),
                ("key_name", models.CharField(max_length=100, null=True)),
                ("adapter", models.CharField(max_length=200)),
                ("base_model", models.CharField(max_length=200)),
                ("backend", models.CharField(max_length=200)),
                ("item", models.CharField(max_length=20)),
                ("quantity", models.BigIntegerField()),
                ("unit_nano", models.BigIntegerField(null=True)),
                ("per", models.BigIntegerField()),
                ("amount_nano", models.BigIntegerField(null=True)),
            ],
            options={"ordering": ("position",)},
        ),
        migrations.CreateModel(
            name="JournalEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("number", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                ("day", models.DateField()),
                ("kind", models.CharField(max_length=15)),
                ("debit", models.CharField(max_length=12)),
                ("credit", models.CharField(max_length=12)),
                ("amount_nano", models.BigIntegerField()),
                ("currency", models.CharField(max_length=3)),
                ("memo", models.CharField(max_length=200)),
            ],
            options={"verbose_name_plural": "journal entries", "ordering": ("-id",)},
        ),
        migrations.CreateModel(
            name="LedgerCheckpoint",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("through", models.BigIntegerField()),
                ("sums", models.JSONField()),
            ],
        ),
        migrations.CreateModel(
            name="LedgerHead",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("entries", models.BigIntegerField(default=0)),
                ("invoices", models.BigIntegerField(default=0)),
                ("credit_notes", models.BigIntegerField(db_default=0, default=0)),
                ("closed_through", models.DateField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="PostedDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("day", models.DateField()),
                ("mark", models.CharField(max_length=200)),
                ("unpriced", models.BooleanField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="PrepaidMark",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("peak_nano", models.BigIntegerField()),
                ("top_ups", models.BigIntegerField(db_default=0, default=0)),
                ("told", models.PositiveSmallIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Price",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("base_model", models.CharField(max_length=63)),
                ("adapter", models.CharField(max_length=130)),
                ("backend", models.CharField(db_default="", max_length=63)),
                ("effective_from", models.DateField()),
                ("input_nano", models.BigIntegerField()),
                ("cached_input_nano", models.BigIntegerField()),
                ("output_nano", models.BigIntegerField()),
                ("request_nano", models.BigIntegerField(db_default=0, default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("reasoning_nano", models.PositiveBigIntegerField(null=True)),
            ],
            options={"ordering": ("base_model", "adapter", "backend", "effective_from")},
        ),
        migrations.CreateModel(
            name="PriceBook",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, unique=True)),
                ("currency", models.CharField(default="USD", max_length=3)),
                ("is_default", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="PriceBookTerm",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("starts", models.DateField()),
                ("ends", models.DateField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("tenant", "starts")},
        ),
        migrations.CreateModel(
            name="TaxTreatment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("starts", models.DateField()),
                ("kind", models.CharField(max_length=15)),
                ("label", models.CharField(max_length=30)),
                ("rate_percent", models.DecimalField(decimal_places=4, default=0, max_digits=7)),
                ("tax_number", models.CharField(max_length=40)),
                ("text", models.CharField(max_length=300)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("-starts",)},
        ),
        migrations.CreateModel(
            name="BillingParty",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("starts", models.DateField()),
                ("legal_name", models.CharField(max_length=200)),
                ("address", models.CharField(max_length=500)),
                ("contact", models.CharField(max_length=200)),
                ("tax_number", models.CharField(max_length=40)),
                ("registration", models.CharField(max_length=200)),
                ("payment_text", models.CharField(max_length=500)),
                ("reference", models.CharField(max_length=100)),
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
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("scope", models.CharField(max_length=100)),
                ("period", models.CharField(max_length=10)),
                ("percent", models.PositiveSmallIntegerField()),
                ("budget_nano", models.BigIntegerField()),
                ("spent_nano", models.BigIntegerField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("notify_at", models.DateTimeField(null=True)),
                ("notify_attempts", models.PositiveSmallIntegerField(default=0)),
                ("notified", models.JSONField(null=True)),
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
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=63)),
                ("amount_nano", models.BigIntegerField()),
                ("starts", models.DateField()),
                ("expires_on", models.DateField(null=True)),
                ("note", models.CharField(max_length=200)),
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
                ("render_at", models.DateTimeField(null=True)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("key", models.CharField(max_length=200)),
                ("size", models.BigIntegerField(default=0)),
                ("sha256", models.CharField(max_length=64)),
                ("rendered_at", models.DateTimeField(null=True)),
                (
                    "credit_note",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        serialize=False,
                        to="billing.creditnote",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="CreditNoteLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("position", models.IntegerField()),
                ("amount_nano", models.BigIntegerField()),
                (
                    "credit_note",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="billing.creditnote"),
                ),
            ],
            options={"ordering": ("position",)},
        ),
        migrations.CreateModel(
            name="InvoicePdf",
            fields=[
                ("render_at", models.DateTimeField(null=True)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("key", models.CharField(max_length=200)),
                ("size", models.BigIntegerField(default=0)),
                ("sha256", models.CharField(max_length=64)),
                ("rendered_at", models.DateTimeField(null=True)),
                (
                    "invoice",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
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
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="billing.invoice"),
        ),
        migrations.AddField(
            model_name="invoiceline",
            name="invoice",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="billing.invoice"),
        ),
        migrations.AddField(
            model_name="creditnoteline",
            name="invoice_line",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.DO_NOTHING, to="billing.invoiceline"
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
                        serialize=False,
                        to="billing.journalentry",
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                ("day", models.DateField()),
                ("month", models.DateField()),
                ("project", models.CharField(max_length=200)),
                ("key_id", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("base_model", models.CharField(max_length=200)),
                ("backend", models.CharField(max_length=200)),
                ("item", models.CharField(max_length=20)),
                ("quantity", models.BigIntegerField()),
                ("unit_nano", models.BigIntegerField()),
                ("per", models.BigIntegerField()),
                ("amount_nano", models.BigIntegerField()),
            ],
        ),
        migrations.AddField(
            model_name="journalentry",
            name="credit_note",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                to="billing.creditnote",
            ),
        ),
        migrations.AddField(
            model_name="journalentry",
            name="grant",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, to="billing.creditgrant"
            ),
        ),
        migrations.AddField(
            model_name="journalentry",
            name="invoice",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, to="billing.invoice"
            ),
        ),
        migrations.AddField(
            model_name="journalentry",
            name="reverses",
            field=models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.PROTECT, to="billing.journalentry"
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
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="billing.pricebook"),
        ),
        migrations.AddField(
            model_name="hostingprice",
            name="book",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="billing.pricebook"),
        ),
        migrations.AddField(
            model_name="pricebookterm",
            name="book",
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="billing.pricebook"),
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
