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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=40, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("sagemaker", "Sagemaker"),
                            ("local", "Local"),
                            ("openai_http", "Openai Http"),
                        ],
                        max_length=20,
                    ),
                ),
                ("region", models.CharField(blank=True, max_length=30)),
                (
                    "endpoint_url",
                    models.CharField(
                        blank=True,
                        help_text="sagemaker: endpoint URL that replaces AWS's for all services.",
                        max_length=500,
                    ),
                ),
                (
                    "role_arn",
                    models.CharField(
                        blank=True,
                        help_text="sagemaker: execution role of endpoints (ExecutionRoleArn).",
                        max_length=2048,
                    ),
                ),
                (
                    "assume_role_arn",
                    models.CharField(
                        blank=True,
                        help_text="sagemaker: role for all calls; '' for the process's own.",
                        max_length=2048,
                    ),
                ),
                (
                    "store",
                    models.CharField(
                        blank=True,
                        help_text="sagemaker: s3://bucket/prefix for adapter archives.",
                        max_length=500,
                    ),
                ),
                (
                    "owner",
                    models.CharField(
                        db_default="",
                        default=controlplane.deployments.models.target._new_owner,
                        editable=False,
                        help_text="sagemaker: tag and store folder of resources that this installation created.",
                        max_length=12,
                    ),
                ),
                (
                    "host",
                    models.CharField(
                        blank=True, help_text="local: host name of the machine.", max_length=255
                    ),
                ),
                (
                    "address",
                    models.CharField(
                        blank=True, help_text="local: address that gateways use.", max_length=255
                    ),
                ),
                (
                    "urls",
                    models.JSONField(
                        blank=True, default=list, help_text="openai_http: base URLs without /v1."
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="Deployment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=36)),
                (
                    "hosting",
                    models.CharField(
                        choices=[
                            ("components", "one inference component per adapter"),
                            ("preloaded", "one archive for all adapters"),
                            ("fused", "merged into the weights"),
                            ("on_demand", "loaded on demand"),
                            ("api", "loaded through the server's API"),
                        ],
                        max_length=20,
                    ),
                ),
                (
                    "endpoint",
                    models.CharField(
                        blank=True, help_text="sagemaker: name of a shared endpoint.", max_length=63
                    ),
                ),
                ("min_copies", models.PositiveSmallIntegerField(default=1)),
                ("max_copies", models.PositiveSmallIntegerField(default=1)),
                ("instance_type", models.CharField(blank=True, max_length=40)),
                ("min_instances", models.PositiveSmallIntegerField(default=1)),
                ("max_instances", models.PositiveSmallIntegerField(default=1)),
                (
                    "variant",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Variant of the base model; '' for its own checkpoint.",
                        max_length=63,
                    ),
                ),
                (
                    "urls",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="openai_http: server URLs; [] for the target's.",
                    ),
                ),
                (
                    "image",
                    models.CharField(
                        blank=True, help_text="Name from the image table, or an address.", max_length=400
                    ),
                ),
                ("image_family", models.CharField(blank=True, max_length=10)),
                (
                    "options",
                    models.JSONField(
                        blank=True, default=dict, help_text="LmiOptions that differ from the defaults."
                    ),
                ),
                (
                    "environment",
                    models.JSONField(blank=True, default=dict, help_text="Additional environment variables."),
                ),
                (
                    "compute",
                    models.JSONField(
                        blank=True, default=dict, help_text="accelerators, cpus, memory_mb and their reasons."
                    ),
                ),
                (
                    "adapter_scope",
                    models.CharField(
                        choices=[
                            ("all", "all ready versions"),
                            ("named", "versions that a name or alias refers to"),
                        ],
                        default="all",
                        max_length=10,
                    ),
                ),
                ("generation", models.PositiveIntegerField(default=1)),
                ("removal_asked_at", models.DateTimeField(blank=True, null=True)),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("working", "Working"),
                            ("serving", "Serving"),
                            ("degraded", "Degraded"),
                            ("failed", "Failed"),
                            ("removing", "Removing"),
                            ("removed", "Removed"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                (
                    "reason",
                    models.TextField(blank=True, help_text="Pending condition or recommended action."),
                ),
                (
                    "resources",
                    models.JSONField(
                        blank=True, default=list, help_text="Last observed: kind, name, state, reason."
                    ),
                ),
                (
                    "observed_generation",
                    models.PositiveIntegerField(default=0, help_text="Generation in force."),
                ),
                ("observed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "routes_version",
                    models.BigIntegerField(default=0, help_text="Route table version of the placements."),
                ),
                ("failures", models.PositiveIntegerField(default=0, help_text="Consecutive failed runs.")),
                (
                    "next_at",
                    models.DateTimeField(
                        db_index=True, default=django.utils.timezone.now, help_text="Time of the next run."
                    ),
                ),
                (
                    "leaving",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="URL that left the routes -> end of its last request.",
                    ),
                ),
                (
                    "retry_at",
                    models.DateTimeField(
                        blank=True, help_text="When failed resources are recreated; null for none.", null=True
                    ),
                ),
                (
                    "drained_at",
                    models.DateTimeField(blank=True, help_text="When the removal may continue.", null=True),
                ),
                ("removed_at", models.DateTimeField(blank=True, null=True)),
                ("lease_owner", models.CharField(blank=True, max_length=64)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deployments",
                        to="catalog.basemodel",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deployments",
                        to="deployments.target",
                    ),
                ),
            ],
            options={"ordering": ("name", "pk")},
        ),
        migrations.CreateModel(
            name="DeploymentStep",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("action", models.CharField(max_length=60)),
                ("resource", models.CharField(blank=True, max_length=200)),
                (
                    "outcome",
                    models.CharField(
                        choices=[("done", "Done"), ("failed", "Failed"), ("noted", "Noted")],
                        default="done",
                        max_length=10,
                    ),
                ),
                ("cause", models.TextField(blank=True, help_text="Reason for the step, or for its failure.")),
                ("actor", models.CharField(blank=True, max_length=200)),
                ("seconds", models.FloatField(blank=True, help_text="Duration of the call.", null=True)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="deployments.deployment",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="Scaling",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "policy",
                    models.JSONField(blank=True, help_text="ScalingPolicy.to_json(); null: off.", null=True),
                ),
                ("copies", models.PositiveSmallIntegerField(default=0)),
                ("state", models.JSONField(blank=True, default=dict)),
                ("seen", models.JSONField(blank=True, default=dict)),
                ("evaluated_at", models.DateTimeField(blank=True, null=True)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scaling",
                        to="deployments.deployment",
                    ),
                ),
            ],
            options={"ordering": ("deployment_id",)},
        ),
        migrations.CreateModel(
            name="Copy",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("worker", "Worker"),
                            ("openai_http", "Openai Http"),
                            ("sagemaker", "Sagemaker"),
                        ],
                        max_length=20,
                    ),
                ),
                (
                    "url",
                    models.CharField(
                        blank=True,
                        help_text="Base URL without /v1; sagemaker: empty for the region's endpoint.",
                        max_length=500,
                    ),
                ),
                (
                    "loads_adapters",
                    models.BooleanField(
                        default=False, help_text="openai_http: gateways may make vLLM load missing adapters."
                    ),
                ),
                ("region", models.CharField(blank=True, max_length=30)),
                ("endpoint", models.CharField(blank=True, max_length=63)),
                (
                    "component",
                    models.CharField(
                        blank=True, help_text="Inference component of the base model, if any.", max_length=63
                    ),
                ),
                (
                    "adapter_naming",
                    models.CharField(
                        choices=[("components", "Components"), ("reference", "Reference"), ("name", "Name")],
                        default="components",
                        max_length=20,
                    ),
                ),
                (
                    "api",
                    models.CharField(
                        choices=[("invocations", "Invocations"), ("openai", "Openai")],
                        default="invocations",
                        max_length=20,
                    ),
                ),
                (
                    "canary",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Rollout that gives these copies an exact share of callers; '' for none.",
                        max_length=40,
                    ),
                ),
                (
                    "percent",
                    models.PositiveSmallIntegerField(
                        db_default=0, default=0, help_text="Percent of callers in the canary."
                    ),
                ),
                (
                    "silent_since",
                    models.DateTimeField(
                        blank=True, help_text="Time of the first poll without a response.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="copies",
                        to="catalog.basemodel",
                    ),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        help_text="Owner of the copy.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="copies",
                        to="deployments.deployment",
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("engine_name", models.CharField(max_length=200)),
                ("ref", models.JSONField()),
                (
                    "copies",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Number of copies that pin it; 0 for none."
                    ),
                ),
                ("on", models.JSONField(blank=True, default=list)),
                ("away", models.JSONField(blank=True, default=list)),
                ("leaving", models.JSONField(blank=True, default=dict)),
                ("ready", models.JSONField(blank=True, default=list)),
                ("generation", models.PositiveIntegerField(default=1)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting for a copy"),
                            ("loading", "Loading"),
                            ("ready", "Ready"),
                            ("moving", "Moving"),
                            ("leaving", "Leaving"),
                            ("failed", "Failed"),
                        ],
                        default="loading",
                        max_length=10,
                    ),
                ),
                (
                    "reason",
                    models.TextField(blank=True, help_text="Pending condition or recommended action."),
                ),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="adapter_rules",
                        to="deployments.deployment",
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "strategy",
                    models.CharField(
                        choices=[
                            ("rolling", "batches of copies"),
                            ("blue_green", "a complete new set, then a switch"),
                            ("canary", "exact shares of callers for a few new copies, then a switch"),
                        ],
                        max_length=12,
                    ),
                ),
                ("before", models.JSONField(help_text="Previous values of ROLLED.")),
                ("after", models.JSONField(help_text="New values of ROLLED.")),
                ("policy", models.JSONField(help_text="RolloutPolicy.")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("paused", "Paused"),
                            ("rolling_back", "Rolling Back"),
                            ("completed", "Completed"),
                            ("rolled_back", "Rolled Back"),
                            ("aborted", "Aborted"),
                        ],
                        default="running",
                        max_length=12,
                    ),
                ),
                ("step", models.PositiveSmallIntegerField(default=0, help_text="Number of completed steps.")),
                (
                    "ready_at",
                    models.DateTimeField(help_text="When all copies of this step were ready.", null=True),
                ),
                ("turned_at", models.DateTimeField(help_text="Start of the rollout or rollback.")),
                ("copies", models.JSONField(default=dict, help_text="Ids of copies that served: new, old.")),
                (
                    "verdict",
                    models.CharField(
                        blank=True,
                        help_text="Verdict on usage at this step: worse, fine, wait.",
                        max_length=5,
                    ),
                ),
                ("judged_at", models.DateTimeField(help_text="Time of the last verdict.", null=True)),
                ("figures", models.JSONField(help_text="Metrics of the last verdict.", null=True)),
                (
                    "reason",
                    models.TextField(blank=True, help_text="Pending condition, or reason of the end."),
                ),
                ("aborted", models.BooleanField(default=False, help_text="An operator aborted the rollout.")),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rollouts",
                        to="deployments.deployment",
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("engine_name", models.CharField(max_length=200)),
                ("uri", models.CharField(max_length=1000)),
                ("sha256", models.CharField(max_length=64)),
                ("rank", models.PositiveIntegerField()),
                ("resource", models.CharField(blank=True, help_text="Name at the provider.", max_length=200)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("loading", "Loading"),
                            ("ready", "Ready"),
                            ("failed", "Failed"),
                            ("leaving", "Leaving"),
                        ],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("reason", models.TextField(blank=True)),
                (
                    "leaves_at",
                    models.DateTimeField(
                        blank=True, help_text="When the adapter may be removed; it has no route.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="placements",
                        to="deployments.deployment",
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("event", models.CharField(max_length=64)),
                ("copies_before", models.PositiveSmallIntegerField()),
                ("copies_after", models.PositiveSmallIntegerField()),
                ("cause", models.TextField(blank=True)),
                ("began_at", models.DateTimeField()),
                ("decided_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("phases", models.JSONField(blank=True, default=dict)),
                ("image", models.CharField(blank=True, db_default="", default="", max_length=400)),
                (
                    "machines",
                    models.JSONField(
                        blank=True, db_default=models.Value({}, models.JSONField()), default=dict
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        blank=True, choices=[("done", "Done"), ("overtaken", "Overtaken")], max_length=10
                    ),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scale_ups",
                        to="deployments.deployment",
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
