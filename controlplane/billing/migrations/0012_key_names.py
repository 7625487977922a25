"""Lines keep their keys' names. Those of invoices that are finalized stay as they are, without."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0011_validate_shortfall"),
    ]

    operations = [
        # May be null: so SQLite adds the column, and does not make the table anew without its triggers.
        migrations.AddField(
            model_name="invoiceline",
            name="key_name",
            field=models.CharField(
                blank=True,
                help_text="As it was when the invoice was finalized; null: finalized before names were kept.",
                max_length=100,
                null=True,
            ),
        ),
    ]
