"""Adds how a copy's container is asked, and the adapters that it loaded at its start."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0003_merged_adapter")]

    operations = [
        migrations.AddField(
            model_name="copy",
            name="container",
            field=models.CharField(db_default="lmi", default="lmi", max_length=20),
        ),
        migrations.AddField(model_name="copy", name="loaded", field=models.JSONField(null=True)),
    ]
