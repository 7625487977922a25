"""Adds what a version needs of the copies that serve it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("adapters", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="adapterversion", name="traits", field=models.JSONField(db_default=[], default=list)
        )
    ]
