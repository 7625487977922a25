"""Adds the adapter that a variant has merged into the weights."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_hub_token")]

    operations = [
        migrations.AddField(
            model_name="variant",
            name="merged_adapter",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Engine name of the adapter that is merged into the weights; '' for none.",
                max_length=160,
            ),
        )
    ]
