"""Adds the quantization method of a base model."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0003_merged_adapter")]

    operations = [
        migrations.AddField(
            model_name="basemodel",
            name="quantization",
            field=models.CharField(db_default="", default="", max_length=40),
        )
    ]
