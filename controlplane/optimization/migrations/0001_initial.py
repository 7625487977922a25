import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


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
                ("size", models.PositiveIntegerField()),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("-created_at", "sha256")},
        ),
        migrations.CreateModel(
            name="Artifact",
            fields=[
                ("sha256", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("state", models.CharField(default="storing", max_length=10)),
                ("uri", models.CharField(max_length=1000)),
                ("size", models.BigIntegerField()),
                ("files", models.JSONField()),
                ("needed_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "target",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="deployments.target"
                    ),
                ),
            ],
            options={"ordering": ("-created_at", "sha256")},
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("subject", models.CharField(max_length=100, unique=True)),
                ("base_model", models.CharField(max_length=63)),
                ("machine", models.CharField(max_length=4)),
                ("instance_type", models.CharField(max_length=40)),
                ("host", models.CharField(max_length=255)),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("metered", models.BooleanField(default=False)),
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
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("machine", models.CharField(max_length=4)),
                ("status", models.CharField(default="queued", max_length=10)),
                ("error_code", models.CharField(max_length=40)),
                ("reason", models.TextField()),
                ("cancel_asked_at", models.DateTimeField(null=True)),
                ("phase", models.CharField(max_length=60)),
                ("percent", models.FloatField(default=0)),
                ("eta_seconds", models.FloatField(null=True)),
                ("log_tail", models.TextField()),
                ("progress_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("lost_attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("host", models.CharField(max_length=255)),
                ("lease_owner", models.CharField(max_length=64)),
                ("lease_until", models.DateTimeField(null=True)),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("checkpoint_sha256", models.CharField(max_length=64)),
                ("recipe", models.JSONField()),
                ("recipe_sha256", models.CharField(max_length=64)),
                ("engine", models.CharField(max_length=10)),
                ("remote", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ("identity", models.CharField(max_length=64)),
                ("variant_name", models.CharField(max_length=63)),
                ("lineage", models.JSONField(default=dict)),
                (
                    "artifact",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="optimization.artifact"
                    ),
                ),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="catalog.basemodel"),
                ),
                (
                    "target",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to="deployments.target"
                    ),
                ),
                (
                    "variant",
                    models.OneToOneField(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to="catalog.variant"
                    ),
                ),
                (
                    "prompts",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="optimization.promptset"
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="ComparisonRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("machine", models.CharField(max_length=4)),
                ("status", models.CharField(default="queued", max_length=10)),
                ("error_code", models.CharField(max_length=40)),
                ("reason", models.TextField()),
                ("cancel_asked_at", models.DateTimeField(null=True)),
                ("phase", models.CharField(max_length=60)),
                ("percent", models.FloatField(default=0)),
                ("eta_seconds", models.FloatField(null=True)),
                ("log_tail", models.TextField()),
                ("progress_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("lost_attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("host", models.CharField(max_length=255)),
                ("lease_owner", models.CharField(max_length=64)),
                ("lease_until", models.DateTimeField(null=True)),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("name", models.CharField(max_length=100)),
                ("arms", models.JSONField()),
                ("settings", models.JSONField(default=dict)),
                ("identity", models.CharField(max_length=64)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="catalog.basemodel"),
                ),
                (
                    "prompts",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="optimization.promptset"
                    ),
                ),
                (
                    "texts",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="optimization.promptset"
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="Assessment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("machine", models.CharField(max_length=4)),
                ("status", models.CharField(default="queued", max_length=10)),
                ("error_code", models.CharField(max_length=40)),
                ("reason", models.TextField()),
                ("cancel_asked_at", models.DateTimeField(null=True)),
                ("phase", models.CharField(max_length=60)),
                ("percent", models.FloatField(default=0)),
                ("eta_seconds", models.FloatField(null=True)),
                ("log_tail", models.TextField()),
                ("progress_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("lost_attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("host", models.CharField(max_length=255)),
                ("lease_owner", models.CharField(max_length=64)),
                ("lease_until", models.DateTimeField(null=True)),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("subject", models.CharField(max_length=14)),
                ("name", models.CharField(max_length=100)),
                ("remote", models.JSONField(default=dict)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="catalog.basemodel"),
                ),
                (
                    "target",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to="deployments.target"
                    ),
                ),
                (
                    "prompts",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="optimization.promptset"
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="WorkEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("event", models.CharField(max_length=40)),
                ("detail", models.TextField()),
                ("actor", models.CharField(max_length=200)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "assessment",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="optimization.assessment"
                    ),
                ),
                (
                    "comparison",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="optimization.comparisonrun",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
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
    ]
