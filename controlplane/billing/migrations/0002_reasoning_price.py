"""Adds the price of reasoning tokens."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="price",
            name="reasoning_nano",
            field=models.PositiveBigIntegerField(
                blank=True, help_text="Per output token of the thought; null for `output_nano`.", null=True
            ),
        )
    ]
