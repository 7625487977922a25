"""Lines keep their keys' names, and booked days whether some of their usage has no price.

Both may be null: so SQLite adds the columns, and does not make the tables anew without their triggers. Lines of
invoices that are finalized stay as they are, without; days are looked at once more.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0011_validate_shortfall"),
    ]

    operations = [
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
        migrations.AddField(
            model_name="postedday",
            name="unpriced",
            field=models.BooleanField(
                help_text="Some of its usage has no price; null: booked by a release that did not say.",
                null=True,
            ),
        ),
    ]
