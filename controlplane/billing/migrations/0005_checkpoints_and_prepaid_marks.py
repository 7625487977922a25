"""Balances that are kept up to an entry, and what was told of prepaid money."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0004_credit_notes_and_taxes"),
    ]

    operations = [
        migrations.CreateModel(
            name="LedgerCheckpoint",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("through", models.BigIntegerField(help_text="Number of the last entry that is in it.")),
                ("sums", models.JSONField(help_text="Debits less credits in nano-units, by account.")),
            ],
        ),
        migrations.CreateModel(
            name="PrepaidMark",
            fields=[
                ("tenant", models.CharField(max_length=63, primary_key=True, serialize=False)),
                (
                    "peak_nano",
                    models.BigIntegerField(help_text="The most that was left since the last top-up."),
                ),
                (
                    "told",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Percent used that was told of; 0: nothing."
                    ),
                ),
            ],
        ),
    ]
