"""Adds the adapter that a copy or deployment has merged into the weights."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0002_endpoint_hosting")]

    operations = [
        migrations.AddField(
            model_name="copy",
            name="merged_adapter",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Engine name of the adapter merged into the weights, the only one served; '' for none.",
                max_length=160,
            ),
        ),
        migrations.AddField(
            model_name="deployment",
            name="merged_adapter",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Engine name of the adapter that the variant has merged in; '' for none.",
                max_length=160,
            ),
        ),
    ]
