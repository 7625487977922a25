"""Adds the adapter that a variant has merged into the weights."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_hub_token")]

    operations = [
        migrations.AddField(
            model_name="variant",
            name="merged_adapter",
            field=models.CharField(db_default="", default="", max_length=160),
        )
    ]
