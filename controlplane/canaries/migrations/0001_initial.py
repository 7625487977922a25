import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("adapters", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Rollout",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(max_length=63)),
                (
                    "steps",
                    models.JSONField(
                        help_text="Increasing percentages of callers; promotion follows the last."
                    ),
                ),
                (
                    "hold_seconds",
                    models.PositiveIntegerField(help_text="Minimum duration of a step in seconds."),
                ),
                (
                    "min_requests",
                    models.PositiveIntegerField(help_text="Minimum requests of each arm at a step."),
                ),
                (
                    "max_error_increase",
                    models.FloatField(help_text="Allowed increase in the share of failed requests."),
                ),
                (
                    "max_latency_ratio",
                    models.FloatField(
                        help_text="Multiple of the stable's 95th percentile that 5 % may exceed.", null=True
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("paused", "Paused"),
                            ("promoted", "Promoted"),
                            ("rolled_back", "Rolled Back"),
                            ("aborted", "Aborted"),
                            ("superseded", "Superseded"),
                        ],
                        default="running",
                        max_length=12,
                    ),
                ),
                ("step", models.PositiveSmallIntegerField(default=0, help_text="Index into `steps`.")),
                ("step_started_at", models.DateTimeField(help_text="Time from which requests count.")),
                (
                    "change",
                    models.BigIntegerField(
                        help_text="Last change of the alias by the rollout; another change ends it."
                    ),
                ),
                ("figures", models.JSONField(help_text="Latest metrics of both arms.", null=True)),
                ("looked_at", models.DateTimeField(null=True)),
                (
                    "reason",
                    models.CharField(
                        blank=True, help_text="Pending condition, or reason of the end.", max_length=1000
                    ),
                ),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "adapter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rollouts",
                        to="adapters.adapter",
                    ),
                ),
                (
                    "canary",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="adapters.adapterversion",
                    ),
                ),
                (
                    "stable",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="adapters.adapterversion",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="RolloutDecision",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("start", "Start"),
                            ("advance", "Advance"),
                            ("promote", "Promote"),
                            ("roll_back", "Roll Back"),
                            ("pause", "Pause"),
                            ("resume", "Resume"),
                            ("abort", "Abort"),
                            ("supersede", "Supersede"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "percent",
                    models.PositiveSmallIntegerField(
                        help_text="The canary's share of callers after the decision."
                    ),
                ),
                ("figures", models.JSONField(null=True)),
                ("reason", models.CharField(blank=True, max_length=1000)),
                ("by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "rollout",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="decisions",
                        to="canaries.rollout",
                    ),
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
