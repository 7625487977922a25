"""Adds the engine of a copy, by which its capability is known."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0006_removed_copy")]

    operations = [
        migrations.AddField(
            model_name="copy", name="engine", field=models.CharField(db_default="", default="", max_length=20)
        ),
        migrations.AddField(
            model_name="copy",
            name="engine_version",
            field=models.CharField(db_default="", default="", max_length=60),
        ),
        migrations.AddField(model_name="copy", name="max_rank", field=models.PositiveIntegerField(null=True)),
    ]
