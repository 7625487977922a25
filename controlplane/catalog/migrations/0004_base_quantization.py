"""Adds the quantization method of a base model."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0003_merged_adapter")]

    operations = [
        migrations.AddField(
            model_name="basemodel",
            name="quantization",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Quantization method of the weights, such as awq or fp8; '' for none.",
                max_length=40,
            ),
        )
    ]
