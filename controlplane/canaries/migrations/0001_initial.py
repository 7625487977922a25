import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("adapters", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Rollout",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("alias", models.CharField(max_length=63)),
                ("steps", models.JSONField()),
                ("hold_seconds", models.PositiveIntegerField()),
                ("min_requests", models.PositiveIntegerField()),
                ("max_error_increase", models.FloatField()),
                ("max_latency_ratio", models.FloatField(null=True)),
                ("status", models.CharField(default="running", max_length=12)),
                ("step", models.PositiveSmallIntegerField(default=0)),
                ("step_started_at", models.DateTimeField()),
                ("change", models.BigIntegerField()),
                ("figures", models.JSONField(null=True)),
                ("looked_at", models.DateTimeField(null=True)),
                ("reason", models.CharField(max_length=1000)),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "adapter",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="adapters.adapter"),
                ),
                (
                    "canary",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="adapters.adapterversion"
                    ),
                ),
                (
                    "stable",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="adapters.adapterversion"
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="RolloutDecision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=10)),
                ("percent", models.PositiveSmallIntegerField()),
                ("figures", models.JSONField(null=True)),
                ("reason", models.CharField(max_length=1000)),
                ("by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "rollout",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="canaries.rollout"),
                ),
            ],
            options={"ordering": ("pk",)},
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status__in", ["running", "paused"])),
                fields=("adapter", "alias"),
                name="rollout_one_active",
            ),
        ),
    ]
