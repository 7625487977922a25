"""Adds the adapter that a job merges into the weights."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("optimization", "0002_bundled_prompts")]

    operations = [
        migrations.AddField(
            model_name="optimizationjob",
            name="adapter",
            field=models.JSONField(
                blank=True,
                db_default=models.Value({}, models.JSONField()),
                default=dict,
                help_text="AdapterRef of the adapter to merge into the weights; {} for none.",
            ),
        ),
        migrations.AlterField(
            model_name="optimizationjob",
            name="identity",
            field=models.CharField(
                help_text="Digest of checkpoint, recipe, calibration texts and adapter.", max_length=64
            ),
        ),
    ]
