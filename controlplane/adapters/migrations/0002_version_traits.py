"""Adds what a version needs of the copies that serve it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("adapters", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="adapterversion",
            name="traits",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                help_text="Sorted values of contracts.capabilities.traits.Trait: what a copy must serve.",
            ),
        )
    ]
