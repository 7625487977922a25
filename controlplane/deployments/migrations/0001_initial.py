import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import controlplane.deployments.models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("catalog", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Target",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=40, unique=True)),
                ("kind", models.CharField(max_length=20)),
                ("region", models.CharField(max_length=30)),
                ("endpoint_url", models.CharField(max_length=500)),
                ("role_arn", models.CharField(max_length=2048)),
                ("assume_role_arn", models.CharField(max_length=2048)),
                ("store", models.CharField(max_length=500)),
                (
                    "owner",
                    models.CharField(
                        db_default="",
                        default=controlplane.deployments.models.target._new_owner,
                        editable=False,
                        max_length=12,
                    ),
                ),
                ("host", models.CharField(max_length=255)),
                ("address", models.CharField(max_length=255)),
                ("urls", models.JSONField(default=list)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="Deployment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=36)),
                ("hosting", models.CharField(max_length=20)),
                ("endpoint", models.CharField(max_length=63)),
                ("min_copies", models.PositiveSmallIntegerField(default=1)),
                ("max_copies", models.PositiveSmallIntegerField(default=1)),
                ("instance_type", models.CharField(max_length=40)),
                ("min_instances", models.PositiveSmallIntegerField(default=1)),
                ("max_instances", models.PositiveSmallIntegerField(default=1)),
                ("variant", models.CharField(db_default="", default="", max_length=63)),
                ("urls", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("image", models.CharField(max_length=400)),
                ("image_family", models.CharField(max_length=10)),
                ("options", models.JSONField(default=dict)),
                ("environment", models.JSONField(default=dict)),
                ("compute", models.JSONField(default=dict)),
                ("adapter_scope", models.CharField(default="all", max_length=10)),
                ("generation", models.PositiveIntegerField(default=1)),
                ("removal_asked_at", models.DateTimeField(null=True)),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("status", models.CharField(default="pending", max_length=10)),
                ("reason", models.TextField()),
                ("resources", models.JSONField(default=list)),
                ("observed_generation", models.PositiveIntegerField(default=0)),
                ("observed_at", models.DateTimeField(null=True)),
                ("routes_version", models.BigIntegerField(default=0)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("next_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("leaving", models.JSONField(default=dict)),
                ("retry_at", models.DateTimeField(null=True)),
                ("drained_at", models.DateTimeField(null=True)),
                ("removed_at", models.DateTimeField(null=True)),
                ("lease_owner", models.CharField(max_length=64)),
                ("lease_until", models.DateTimeField(null=True)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="catalog.basemodel"),
                ),
                (
                    "target",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="deployments.target"),
                ),
            ],
            options={"ordering": ("name", "pk")},
        ),
        migrations.CreateModel(
            name="DeploymentStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("action", models.CharField(max_length=60)),
                ("resource", models.CharField(max_length=200)),
                ("outcome", models.CharField(default="done", max_length=10)),
                ("cause", models.TextField()),
                ("actor", models.CharField(max_length=200)),
                ("seconds", models.FloatField(null=True)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="deployments.deployment"
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="Scaling",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("policy", models.JSONField(null=True)),
                ("copies", models.PositiveSmallIntegerField(default=0)),
                ("state", models.JSONField(default=dict)),
                ("seen", models.JSONField(default=dict)),
                ("evaluated_at", models.DateTimeField(null=True)),
                ("lease_until", models.DateTimeField(null=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, to="deployments.deployment"
                    ),
                ),
            ],
            options={"ordering": ("deployment_id",)},
        ),
        migrations.CreateModel(
            name="Copy",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=20)),
                ("url", models.CharField(max_length=500)),
                ("loads_adapters", models.BooleanField(default=False)),
                ("region", models.CharField(max_length=30)),
                ("endpoint", models.CharField(max_length=63)),
                ("component", models.CharField(max_length=63)),
                ("adapter_naming", models.CharField(default="components", max_length=20)),
                ("api", models.CharField(default="invocations", max_length=20)),
                ("canary", models.CharField(db_default="", default="", max_length=40)),
                ("percent", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("silent_since", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="catalog.basemodel"),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to="deployments.deployment"
                    ),
                ),
            ],
            options={
                "ordering": ("created_at", "id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("base_model", "url", "region", "endpoint", "component"), name="copy_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="AdapterRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("engine_name", models.CharField(max_length=200)),
                ("ref", models.JSONField()),
                ("copies", models.PositiveSmallIntegerField(default=0)),
                ("on", models.JSONField(default=list)),
                ("away", models.JSONField(default=list)),
                ("leaving", models.JSONField(default=dict)),
                ("ready", models.JSONField(default=list)),
                ("generation", models.PositiveIntegerField(default=1)),
                ("status", models.CharField(default="loading", max_length=10)),
                ("reason", models.TextField()),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="deployments.deployment"
                    ),
                ),
            ],
            options={
                "ordering": ("engine_name",),
                "constraints": [
                    models.UniqueConstraint(fields=("deployment", "engine_name"), name="adapter_rule_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="DeploymentRollout",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("strategy", models.CharField(max_length=12)),
                ("before", models.JSONField()),
                ("after", models.JSONField()),
                ("policy", models.JSONField()),
                ("status", models.CharField(default="running", max_length=12)),
                ("step", models.PositiveSmallIntegerField(default=0)),
                ("ready_at", models.DateTimeField(null=True)),
                ("turned_at", models.DateTimeField()),
                ("copies", models.JSONField(default=dict)),
                ("verdict", models.CharField(max_length=5)),
                ("judged_at", models.DateTimeField(null=True)),
                ("figures", models.JSONField(null=True)),
                ("reason", models.TextField()),
                ("aborted", models.BooleanField(default=False)),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="deployments.deployment"
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("status__in", ["running", "paused", "rolling_back"])),
                        fields=("deployment",),
                        name="deployment_rollout_one_active",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Placement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("engine_name", models.CharField(max_length=200)),
                ("uri", models.CharField(max_length=1000)),
                ("sha256", models.CharField(max_length=64)),
                ("rank", models.PositiveIntegerField()),
                ("resource", models.CharField(max_length=200)),
                ("status", models.CharField(default="waiting", max_length=10)),
                ("reason", models.TextField()),
                ("leaves_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="deployments.deployment"
                    ),
                ),
            ],
            options={
                "ordering": ("engine_name",),
                "constraints": [
                    models.UniqueConstraint(fields=("deployment", "engine_name"), name="placement_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="ScaleUp",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("event", models.CharField(max_length=64)),
                ("copies_before", models.PositiveSmallIntegerField()),
                ("copies_after", models.PositiveSmallIntegerField()),
                ("cause", models.TextField()),
                ("began_at", models.DateTimeField()),
                ("decided_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("phases", models.JSONField(default=dict)),
                ("image", models.CharField(db_default="", default="", max_length=400)),
                ("machines", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ("outcome", models.CharField(max_length=10)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="deployments.deployment"
                    ),
                ),
            ],
            options={
                "ordering": ("-decided_at", "-pk"),
                "constraints": [
                    models.UniqueConstraint(fields=("deployment", "event"), name="scale_up_once")
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("removed_at", None)), fields=("name",), name="deployment_once"
            ),
        ),
    ]
