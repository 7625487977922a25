import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import controlplane.deployments.models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("catalog", "0001_initial"),
    ]

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
                        help_text="sagemaker: instead of AWS's, for all its services.",
                        max_length=500,
                    ),
                ),
                (
                    "role_arn",
                    models.CharField(
                        blank=True,
                        help_text="sagemaker: what endpoints run as (ExecutionRoleArn).",
                        max_length=2048,
                    ),
                ),
                (
                    "assume_role_arn",
                    models.CharField(
                        blank=True,
                        help_text="sagemaker: assumed for every call; '' for the process's own.",
                        max_length=2048,
                    ),
                ),
                (
                    "store",
                    models.CharField(
                        blank=True,
                        help_text="sagemaker: s3://bucket/prefix for archives that it loads.",
                        max_length=500,
                    ),
                ),
                (
                    "owner",
                    models.CharField(
                        db_default="",
                        default=controlplane.deployments.models.target._new_owner,
                        editable=False,
                        help_text="sagemaker: the tag, and the store's folder, of what this installation made for it.",
                        max_length=12,
                    ),
                ),
                (
                    "host",
                    models.CharField(blank=True, help_text="local: the machine's host name.", max_length=255),
                ),
                (
                    "address",
                    models.CharField(
                        blank=True, help_text="local: what gateways call it by.", max_length=255
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
            options={
                "ordering": ("name",),
            },
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
                            ("components", "an inference component each"),
                            ("preloaded", "all in one archive"),
                            ("fused", "none: merged into the weights"),
                            ("on_demand", "by the request that needs one"),
                            ("api", "by the server's own routes"),
                        ],
                        max_length=20,
                    ),
                ),
                (
                    "endpoint",
                    models.CharField(
                        blank=True, help_text="sagemaker: bases of one name share it.", max_length=63
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
                        help_text="Of the base model's; '' for its own checkpoint.",
                        max_length=63,
                    ),
                ),
                (
                    "urls",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="openai_http: the servers; [] for the target's.",
                    ),
                ),
                (
                    "image",
                    models.CharField(
                        blank=True, help_text="A name of the table, or an address.", max_length=400
                    ),
                ),
                ("image_family", models.CharField(blank=True, max_length=10)),
                (
                    "options",
                    models.JSONField(
                        blank=True, default=dict, help_text="LmiOptions, those that were given."
                    ),
                ),
                (
                    "environment",
                    models.JSONField(blank=True, default=dict, help_text="Added to the container's."),
                ),
                (
                    "compute",
                    models.JSONField(
                        blank=True, default=dict, help_text="accelerators, cpus, memory_mb, and reasons why."
                    ),
                ),
                (
                    "adapter_scope",
                    models.CharField(
                        choices=[
                            ("all", "every ready version"),
                            ("named", "those that a name or alias means"),
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
                ("reason", models.TextField(blank=True, help_text="What it waits for, or what to do.")),
                (
                    "resources",
                    models.JSONField(
                        blank=True, default=list, help_text="As seen last: kind, name, state, reason."
                    ),
                ),
                (
                    "observed_generation",
                    models.PositiveIntegerField(default=0, help_text="Whose desired state is in force."),
                ),
                ("observed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "routes_version",
                    models.BigIntegerField(default=0, help_text="Of the table that placements are from."),
                ),
                ("failures", models.PositiveIntegerField(default=0, help_text="Looks in a row that failed.")),
                (
                    "next_at",
                    models.DateTimeField(
                        db_index=True, default=django.utils.timezone.now, help_text="When to look again."
                    ),
                ),
                (
                    "leaving",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="URL of a place that left the routes -> when its last request is over.",
                    ),
                ),
                (
                    "retry_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="What failed is made anew from then on; null while nothing has.",
                        null=True,
                    ),
                ),
                (
                    "drained_at",
                    models.DateTimeField(blank=True, help_text="Removal may go on from then on.", null=True),
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
            options={
                "ordering": ("name", "pk"),
            },
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
                ("cause", models.TextField(blank=True, help_text="Why it was done, or why it failed.")),
                ("actor", models.CharField(blank=True, max_length=200)),
                ("seconds", models.FloatField(blank=True, help_text="That the call took.", null=True)),
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
            options={
                "ordering": ("-pk",),
            },
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
            options={
                "ordering": ("deployment_id",),
            },
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
                        help_text="Base URL without /v1; of SageMaker empty for the region's own.",
                        max_length=500,
                    ),
                ),
                (
                    "loads_adapters",
                    models.BooleanField(
                        default=False,
                        help_text="openai_http: vLLM may be told to load an adapter that it does not know.",
                    ),
                ),
                ("region", models.CharField(blank=True, max_length=30)),
                ("endpoint", models.CharField(blank=True, max_length=63)),
                (
                    "component",
                    models.CharField(
                        blank=True,
                        help_text="Inference component of the base model, if there is one.",
                        max_length=63,
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
                        help_text="Rollout that gives this copy and its like an exact share of callers; '' for none.",
                        max_length=40,
                    ),
                ),
                (
                    "percent",
                    models.PositiveSmallIntegerField(db_default=0, default=0, help_text="That share."),
                ),
                (
                    "silent_since",
                    models.DateTimeField(
                        blank=True,
                        help_text="Its deployment's looks have had no answer in time since.",
                        null=True,
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
                        help_text="Whose it is.",
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
                        default=0, help_text="That it is pinned on; 0: on none."
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
                            ("waiting", "waits for a copy"),
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
                ("reason", models.TextField(blank=True, help_text="What it waits for, or what to do.")),
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
                            ("rolling", "some copies at a time"),
                            ("blue_green", "a whole new set, then the switch"),
                            ("canary", "exact shares of callers for a few new copies, then the switch"),
                        ],
                        max_length=12,
                    ),
                ),
                ("before", models.JSONField(help_text="ROLLED as they were.")),
                ("after", models.JSONField(help_text="ROLLED as they are to be.")),
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
                ("step", models.PositiveSmallIntegerField(default=0, help_text="Batches that are done.")),
                (
                    "ready_at",
                    models.DateTimeField(
                        help_text="Since when all copies of this step have answered.", null=True
                    ),
                ),
                ("turned_at", models.DateTimeField(help_text="When it began, or was taken back.")),
                (
                    "copies",
                    models.JSONField(default=dict, help_text="Ids of copies that have served: new, old."),
                ),
                (
                    "verdict",
                    models.CharField(
                        blank=True, help_text="Of usage at this step: worse, fine, wait.", max_length=5
                    ),
                ),
                ("judged_at", models.DateTimeField(help_text="When usage was judged last.", null=True)),
                ("figures", models.JSONField(help_text="What was compared then.", null=True)),
                ("reason", models.TextField(blank=True, help_text="What it waits for, or why it ended.")),
                (
                    "aborted",
                    models.BooleanField(
                        default=False, help_text="It is taken back because somebody asked for it."
                    ),
                ),
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
                (
                    "resource",
                    models.CharField(blank=True, help_text="What the provider calls it.", max_length=200),
                ),
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
                    models.DateTimeField(blank=True, help_text="No route leads there any more.", null=True),
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
