"""Invoices ask for what is prepaid and below 0, and credit notes do not take that back."""

import django.db.models.expressions
from django.db import migrations, models

from controlplane.billing.migrations import _triggers, _triggers_0004, _triggers_0009, _triggers_0010
from controlplane.billing.migrations._constraints import AddCheckForNewRows


def _make(connection, changed):
    """The triggers of 0004 with those that later migrations changed."""
    if connection.vendor != "postgresql":
        bodies = _triggers_0004.SQLITE
        for triggers in changed:
            bodies = bodies | triggers.SQLITE
        with connection.cursor() as cursor:
            for name, body in bodies.items():
                cursor.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {body}")
        return
    with connection.cursor() as cursor:
        for statement in changed[-1].POSTGRESQL:
            cursor.execute(statement)


def _remove(connection):
    """On SQLite a table that changes is made anew, without its triggers, and those of others name it."""
    if connection.vendor != "postgresql":
        _triggers.remove(connection, _triggers_0004)
        with connection.cursor() as cursor:
            for name in _triggers_0009.SQLITE:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")


def not_as_before(apps, schema_editor):
    _remove(schema_editor.connection)


def as_before(apps, schema_editor):
    _make(schema_editor.connection, [_triggers_0009])


def protect(apps, schema_editor):
    _make(schema_editor.connection, [_triggers_0009, _triggers_0010])


def unprotect(apps, schema_editor):
    _remove(schema_editor.connection)


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0009_voided_credit_notes"),
    ]

    operations = [
        migrations.RunPython(not_as_before, as_before, elidable=False),
        migrations.RemoveConstraint(
            model_name="invoice",
            name="invoice_adds_up",
        ),
        migrations.AddField(
            model_name="invoice",
            name="shortfall_nano",
            field=models.BigIntegerField(
                db_default=0,
                default=0,
                help_text="What is prepaid was below 0 by, in whole minor units: asked for as well, without tax.",
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
                    ("shortfall", "Shortfall"),
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
        migrations.RunPython(protect, unprotect, elidable=False),
    ]
