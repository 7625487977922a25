"""Credit notes and taxes, and the triggers of the books as they are with them."""

from decimal import Decimal

import django.db.models.deletion
import django.db.models.expressions
from django.db import migrations, models

from controlplane.billing.migrations import _triggers, _triggers_0003, _triggers_0004
from controlplane.billing.migrations._constraints import AddCheckForNewRows


def as_before(apps, schema_editor):
    _triggers.make(schema_editor.connection, _triggers_0003)


def not_as_before(apps, schema_editor):
    _triggers.remove(schema_editor.connection, _triggers_0003)


def protect(apps, schema_editor):
    _triggers.make(schema_editor.connection, _triggers_0004)


def unprotect(apps, schema_editor):
    _triggers.remove(schema_editor.connection, _triggers_0004)


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0003_terms_and_triggers"),
    ]

    operations = [
        # On SQLite a table that changes is made anew, without its triggers.
        migrations.RunPython(not_as_before, as_before, elidable=False),
        migrations.CreateModel(
            name="CreditNote",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(max_length=63)),
                (
                    "number",
                    models.BigIntegerField(help_text="Consecutive within a tenant's credit notes, from 1."),
                ),
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
                ("net_nano", models.BigIntegerField(help_text="Without tax: the sum of its lines.")),
                ("tax_nano", models.BigIntegerField(help_text="Whole minor units of the currency.")),
                (
                    "pre_payment_nano",
                    models.BigIntegerField(help_text="Taken off what was not paid of the invoice."),
                ),
                ("post_payment_nano", models.BigIntegerField(help_text="Of what was paid: given back.")),
                (
                    "post_payment_as",
                    models.CharField(
                        choices=[("balance", "Balance"), ("credit", "Credit"), ("refund", "Refund")],
                        default="balance",
                        max_length=10,
                    ),
                ),
                ("issued_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("-id",),
            },
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
            ],
            options={
                "ordering": ("position",),
            },
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
                    models.CharField(help_text="As documents call it: VAT, GST, Sales tax.", max_length=30),
                ),
                (
                    "rate_percent",
                    models.DecimalField(
                        decimal_places=4,
                        default=0,
                        help_text="Exact decimal, as 8.875; 0 unless taxed.",
                        max_digits=7,
                    ),
                ),
                (
                    "tax_number",
                    models.CharField(blank=True, help_text="The tenant's, as on documents.", max_length=40),
                ),
                (
                    "text",
                    models.CharField(
                        blank=True, help_text="What must stand on the document.", max_length=300
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-starts",),
            },
        ),
        migrations.RemoveConstraint(
            model_name="invoice",
            name="invoice_adds_up",
        ),
        migrations.RemoveConstraint(
            model_name="journalentry",
            name="journal_known_accounts",
        ),
        migrations.AddField(
            model_name="invoice",
            name="tax_kind",
            field=models.CharField(
                blank=True,
                choices=[("taxed", "Taxed"), ("reverse_charge", "Reverse Charge"), ("exempt", "Exempt")],
                db_default="",
                default="",
                help_text="Empty: no tax treatment.",
                max_length=15,
            ),
        ),
        migrations.AddField(
            model_name="invoice",
            name="tax_label",
            field=models.CharField(blank=True, db_default="", default="", max_length=30),
        ),
        migrations.AddField(
            model_name="invoice",
            name="tax_nano",
            field=models.BigIntegerField(
                db_default=0, default=0, help_text="On what is asked for without it: whole minor units."
            ),
        ),
        migrations.AddField(
            model_name="invoice",
            name="tax_number",
            field=models.CharField(blank=True, db_default="", default="", max_length=40),
        ),
        migrations.AddField(
            model_name="invoice",
            name="tax_rate_percent",
            field=models.DecimalField(
                db_default=Decimal("0"), decimal_places=4, default=Decimal("0"), max_digits=7
            ),
        ),
        migrations.AddField(
            model_name="invoice",
            name="tax_text",
            field=models.CharField(blank=True, db_default="", default="", max_length=300),
        ),
        migrations.AddField(
            model_name="ledgerhead",
            name="credit_notes",
            field=models.BigIntegerField(
                db_default=0, default=0, help_text="Number of the newest credit note."
            ),
        ),
        migrations.AlterField(
            model_name="journalentry",
            name="credit",
            field=models.CharField(
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
        migrations.AlterField(
            model_name="journalentry",
            name="debit",
            field=models.CharField(
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
        migrations.AlterField(
            model_name="journalentry",
            name="kind",
            field=models.CharField(
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
                    ("tax", "Tax"),
                    ("credit_note", "Credit Note"),
                ],
                max_length=15,
            ),
        ),
        AddCheckForNewRows(
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
                                            models.F("lines_nano"), "+", models.F("carried_in_nano")
                                        ),
                                        "+",
                                        models.F("tax_nano"),
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
        migrations.CreateModel(
            name="CreditNotePdf",
            fields=[
                (
                    "render_at",
                    models.DateTimeField(help_text="When it is due to be made; null: it is made.", null=True),
                ),
                ("attempts", models.PositiveIntegerField(default=0, help_text="At making it.")),
                ("key", models.CharField(blank=True, help_text="In the artifact store.", max_length=200)),
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
        migrations.AddField(
            model_name="creditnote",
            name="invoice",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="credit_notes", to="billing.invoice"
            ),
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
        AddCheckForNewRows(
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
        migrations.AddField(
            model_name="creditnoteline",
            name="credit_note",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="lines", to="billing.creditnote"
            ),
        ),
        migrations.AddField(
            model_name="creditnoteline",
            name="invoice_line",
            field=models.ForeignKey(
                help_text="Null: of the invoice as a whole.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="credited",
                to="billing.invoiceline",
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
            model_name="creditnote",
            index=models.Index(fields=["tenant", "-id"], name="credit_note_list"),
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
        migrations.RunPython(protect, unprotect, elidable=False),
    ]
