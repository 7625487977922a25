"""Adds the copies that were removed lately, whose requests metrics still count."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deployments", "0005_metrics_namespace")]

    operations = [
        migrations.CreateModel(
            name="RemovedCopy",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("endpoint", models.CharField(max_length=63)),
                ("component", models.CharField(max_length=63)),
                ("adapter_naming", models.CharField(max_length=20)),
                ("removed_at", models.DateTimeField(auto_now_add=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="deployments.deployment"
                    ),
                ),
            ],
        )
    ]
