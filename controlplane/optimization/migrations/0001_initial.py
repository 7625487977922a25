import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

from contracts.recipes.bundled_prompts import BUNDLED  # noqa: F401  # decides the rows
from controlplane.optimization.bundled_sets import add_bundled_sets


class Migration(migrations.Migration):
    initial = True

    dependencies = [("catalog", "0001_initial"), ("deployments", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="PromptSet",
            fields=[
                ("sha256", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100)),
                ("lines", models.PositiveIntegerField()),
                ("size", models.PositiveIntegerField(help_text="Size in bytes.")),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("-created_at", "sha256")},
        ),
        migrations.CreateModel(
            name="Artifact",
            fields=[
                (
                    "sha256",
                    models.CharField(
                        help_text="catalog.digests.checkpoint_digest",
                        max_length=64,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("storing", "Storing"), ("stored", "Stored"), ("removing", "Removing")],
                        default="storing",
                        max_length=10,
                    ),
                ),
                ("uri", models.CharField(max_length=1000)),
                ("size", models.BigIntegerField(help_text="Size of all files in bytes.")),
                ("files", models.JSONField(help_text="SHA-256 by path within the folder.")),
                (
                    "needed_at",
                    models.DateTimeField(
                        default=django.utils.timezone.now, help_text="Time of the last use."
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "target",
                    models.ForeignKey(
                        blank=True,
                        help_text="Target whose store has the files; null for the artifact store.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="artifacts",
                        to="deployments.target",
                    ),
                ),
            ],
            options={"ordering": ("-created_at", "sha256")},
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "subject",
                    models.CharField(
                        help_text="Attempt, such as job-12.1 for the first one.", max_length=100, unique=True
                    ),
                ),
                ("base_model", models.CharField(max_length=63)),
                (
                    "machine",
                    models.CharField(
                        choices=[("cpu", "Cpu"), ("gpu", "Gpu"), ("aws", "SageMaker")], max_length=4
                    ),
                ),
                ("instance_type", models.CharField(blank=True, max_length=40)),
                ("host", models.CharField(max_length=255)),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField(help_text="Time of the last heartbeat.")),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "metered",
                    models.BooleanField(default=False, help_text="Whether its time is metered completely."),
                ),
            ],
            options={
                "ordering": ("-pk",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("metered", False)), fields=["subject"], name="attempt_unmetered"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OptimizationJob",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "machine",
                    models.CharField(
                        choices=[("cpu", "Cpu"), ("gpu", "Gpu"), ("aws", "SageMaker")], max_length=4
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("waiting", "waiting for room"),
                            ("running", "Running"),
                            ("cancelling", "Cancelling"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("error_code", models.CharField(blank=True, max_length=40)),
                (
                    "reason",
                    models.TextField(blank=True, help_text="Pending condition, or reason of the end."),
                ),
                ("cancel_asked_at", models.DateTimeField(blank=True, null=True)),
                ("phase", models.CharField(blank=True, max_length=60)),
                ("percent", models.FloatField(default=0)),
                ("eta_seconds", models.FloatField(blank=True, null=True)),
                ("log_tail", models.TextField(blank=True)),
                ("progress_at", models.DateTimeField(blank=True, null=True)),
                ("result", models.JSONField(blank=True, help_text="Result of the subprocess.", null=True)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "lost_attempts",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Consecutive attempts whose process vanished."
                    ),
                ),
                (
                    "next_at",
                    models.DateTimeField(
                        db_index=True,
                        default=django.utils.timezone.now,
                        help_text="Time of the next enqueueing.",
                    ),
                ),
                ("host", models.CharField(blank=True, max_length=255)),
                ("lease_owner", models.CharField(blank=True, max_length=64)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "checkpoint_sha256",
                    models.CharField(help_text="Checkpoint of the base at the request.", max_length=64),
                ),
                ("recipe", models.JSONField(help_text="contracts.recipes.recipe with defaults filled in.")),
                ("recipe_sha256", models.CharField(max_length=64)),
                ("engine", models.CharField(max_length=10)),
                (
                    "remote",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, models.JSONField()),
                        default=dict,
                        help_text="sagemaker: requested `options`, and `told`, the observed job.",
                    ),
                ),
                (
                    "identity",
                    models.CharField(
                        help_text="Digest of checkpoint, recipe and calibration texts.", max_length=64
                    ),
                ),
                (
                    "variant_name",
                    models.CharField(help_text="Name of the result in the catalogue.", max_length=63),
                ),
                (
                    "lineage",
                    models.JSONField(
                        blank=True, default=dict, help_text="Lineage from the base to the variant."
                    ),
                ),
                (
                    "artifact",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="jobs",
                        to="optimization.artifact",
                    ),
                ),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="%(class)ss",
                        to="catalog.basemodel",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        blank=True,
                        help_text="sagemaker: target whose account runs the job.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="optimizations",
                        to="deployments.target",
                    ),
                ),
                (
                    "variant",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="optimization",
                        to="catalog.variant",
                    ),
                ),
                (
                    "prompts",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="%(class)ss",
                        to="optimization.promptset",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="ComparisonRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "machine",
                    models.CharField(
                        choices=[("cpu", "Cpu"), ("gpu", "Gpu"), ("aws", "SageMaker")], max_length=4
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("waiting", "waiting for room"),
                            ("running", "Running"),
                            ("cancelling", "Cancelling"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("error_code", models.CharField(blank=True, max_length=40)),
                (
                    "reason",
                    models.TextField(blank=True, help_text="Pending condition, or reason of the end."),
                ),
                ("cancel_asked_at", models.DateTimeField(blank=True, null=True)),
                ("phase", models.CharField(blank=True, max_length=60)),
                ("percent", models.FloatField(default=0)),
                ("eta_seconds", models.FloatField(blank=True, null=True)),
                ("log_tail", models.TextField(blank=True)),
                ("progress_at", models.DateTimeField(blank=True, null=True)),
                ("result", models.JSONField(blank=True, help_text="Result of the subprocess.", null=True)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "lost_attempts",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Consecutive attempts whose process vanished."
                    ),
                ),
                (
                    "next_at",
                    models.DateTimeField(
                        db_index=True,
                        default=django.utils.timezone.now,
                        help_text="Time of the next enqueueing.",
                    ),
                ),
                ("host", models.CharField(blank=True, max_length=255)),
                ("lease_owner", models.CharField(blank=True, max_length=64)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("name", models.CharField(blank=True, max_length=100)),
                (
                    "arms",
                    models.JSONField(
                        help_text="name, and variant ('' for the base's own checkpoint); the first is the original."
                    ),
                ),
                (
                    "settings",
                    models.JSONField(
                        blank=True, default=dict, help_text="Settings: load, quality, price, seed."
                    ),
                ),
                ("identity", models.CharField(max_length=64)),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="%(class)ss",
                        to="catalog.basemodel",
                    ),
                ),
                (
                    "prompts",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="%(class)ss",
                        to="optimization.promptset",
                    ),
                ),
                (
                    "texts",
                    models.ForeignKey(
                        blank=True,
                        help_text="Held-out texts for perplexity.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="comparisons_by_texts",
                        to="optimization.promptset",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="Assessment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "machine",
                    models.CharField(
                        choices=[("cpu", "Cpu"), ("gpu", "Gpu"), ("aws", "SageMaker")], max_length=4
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("waiting", "waiting for room"),
                            ("running", "Running"),
                            ("cancelling", "Cancelling"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("error_code", models.CharField(blank=True, max_length=40)),
                (
                    "reason",
                    models.TextField(blank=True, help_text="Pending condition, or reason of the end."),
                ),
                ("cancel_asked_at", models.DateTimeField(blank=True, null=True)),
                ("phase", models.CharField(blank=True, max_length=60)),
                ("percent", models.FloatField(default=0)),
                ("eta_seconds", models.FloatField(blank=True, null=True)),
                ("log_tail", models.TextField(blank=True)),
                ("progress_at", models.DateTimeField(blank=True, null=True)),
                ("result", models.JSONField(blank=True, help_text="Result of the subprocess.", null=True)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "lost_attempts",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Consecutive attempts whose process vanished."
                    ),
                ),
                (
                    "next_at",
                    models.DateTimeField(
                        db_index=True,
                        default=django.utils.timezone.now,
                        help_text="Time of the next enqueueing.",
                    ),
                ),
                ("host", models.CharField(blank=True, max_length=255)),
                ("lease_owner", models.CharField(blank=True, max_length=64)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "subject",
                    models.CharField(
                        choices=[
                            ("benchmark", "of a deployment's endpoint"),
                            ("recommendation", "of instance types and settings for a base"),
                        ],
                        max_length=14,
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=100)),
                (
                    "remote",
                    models.JSONField(
                        default=dict, help_text="Requested `options`, and `told`, the observed job."
                    ),
                ),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="%(class)ss",
                        to="catalog.basemodel",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="assessments",
                        to="deployments.target",
                    ),
                ),
                (
                    "prompts",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="%(class)ss",
                        to="optimization.promptset",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="WorkEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("event", models.CharField(max_length=40)),
                ("detail", models.TextField(blank=True)),
                ("actor", models.CharField(blank=True, max_length=200)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "assessment",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="optimization.assessment",
                    ),
                ),
                (
                    "comparison",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="optimization.comparisonrun",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="optimization.optimizationjob",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.AddConstraint(
            model_name="optimizationjob",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status__in", ["failed", "cancelled"]), _negated=True),
                fields=("identity",),
                name="optimization_job_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="comparisonrun",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status__in", ["queued", "waiting", "running", "cancelling"])),
                fields=("identity",),
                name="comparison_run_once_at_a_time",
            ),
        ),
        migrations.RunPython(add_bundled_sets, migrations.RunPython.noop),
    ]
