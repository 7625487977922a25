"""Adds the adapter that a copy or deployment has merged into the weights."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0002_endpoint_hosting")]

    operations = [
        migrations.AddField(
            model_name="copy",
            name="merged_adapter",
            field=models.CharField(db_default="", default="", max_length=160),
        ),
        migrations.AddField(
            model_name="deployment",
            name="merged_adapter",
            field=models.CharField(db_default="", default="", max_length=160),
        ),
    ]
