"""Adds the CloudWatch namespace of a target."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0004_container_form")]

    operations = [
        migrations.AddField(
            model_name="target",
            name="metrics_namespace",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="sagemaker: CloudWatch namespace for metrics of adapters; '' for no export.",
                max_length=255,
            ),
        )
    ]
