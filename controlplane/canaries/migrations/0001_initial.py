import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("adapters", "0001_initial"),
    ]

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
                        help_text="Percents of callers, rising; behind the last comes promotion."
                    ),
                ),
                ("hold_seconds", models.PositiveIntegerField(help_text="Least time at a step.")),
                (
                    "min_requests",
                    models.PositiveIntegerField(help_text="Least requests of either arm at a step."),
                ),
                (
                    "max_error_increase",
                    models.FloatField(help_text="Share of requests that may fail beyond the stable's."),
                ),
                (
                    "max_latency_ratio",
                    models.FloatField(
                        help_text="How many times the stable's 95th percentile may be exceeded by 5 %.",
                        null=True,
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
                ("step_started_at", models.DateTimeField(help_text="Requests from then on count.")),
                (
                    "change",
                    models.BigIntegerField(
                        help_text="The alias's change that it made last: another ends it."
                    ),
                ),
                ("figures", models.JSONField(help_text="Of the newest look at both arms.", null=True)),
                ("looked_at", models.DateTimeField(null=True)),
                (
                    "reason",
                    models.CharField(
                        blank=True, help_text="What it waits for, or why it ended.", max_length=1000
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
            options={
                "ordering": ("-pk",),
            },
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
                    models.PositiveSmallIntegerField(help_text="The canary's share of callers from then on."),
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
            options={
                "ordering": ("pk",),
            },
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
