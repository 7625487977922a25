"""Adds the adapter that a job merges into the weights."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("optimization", "0002_bundled_prompts")]

    operations = [
        migrations.AddField(
            model_name="optimizationjob",
            name="adapter",
            field=models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict),
        ),
        migrations.AlterField(
            model_name="optimizationjob", name="identity", field=models.CharField(max_length=64)
        ),
    ]
