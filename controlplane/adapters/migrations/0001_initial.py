import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("catalog", "0001_initial"),
        ("tenants", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AdapterQuota",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="adapter_quota",
                        serialize=False,
                        to="tenants.tenant",
                    ),
                ),
                ("adapters", models.PositiveIntegerField(blank=True, null=True)),
                ("versions", models.PositiveIntegerField(blank=True, null=True)),
                ("size_bytes", models.PositiveBigIntegerField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="ArtifactRemoval",
            fields=[
                ("sha256", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="Adapter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63)),
                (
                    "fallback",
                    models.JSONField(
                        blank=True, default=list, help_text="Fallback models, in order, for the bare name."
                    ),
                ),
                (
                    "last_number",
                    models.PositiveIntegerField(
                        default=0, help_text="Highest version number ever used, including purged versions."
                    ),
                ),
                (
                    "labels",
                    models.JSONField(
                        blank=True, default=dict, help_text="The tenant's labels, key to value."
                    ),
                ),
                ("notes", models.TextField(blank=True)),
                (
                    "deleted_at",
                    models.DateTimeField(
                        blank=True,
                        db_index=True,
                        help_text="Time of deletion; restorable within the grace time.",
                        null=True,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "base_model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="adapters",
                        to="catalog.basemodel",
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="adapters",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="AdapterVersion",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("validating", "Validating"),
                            ("ready", "Ready"),
                            ("refused", "Refused"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("reason", models.TextField(blank=True, help_text="Reason for the refusal.")),
                (
                    "steps",
                    models.JSONField(
                        default=list, help_text="Validation steps: name, title, status, detail."
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        blank=True, help_text="URI of the import; '' for uploads.", max_length=1000
                    ),
                ),
                (
                    "staging",
                    models.CharField(
                        blank=True, help_text="Store key of the files during validation.", max_length=200
                    ),
                ),
                (
                    "uri",
                    models.CharField(blank=True, help_text="Folder of the validated files.", max_length=1000),
                ),
                (
                    "sha256",
                    models.CharField(
                        blank=True,
                        help_text="Digest of the files, by contracts.adapters.reference.",
                        max_length=64,
                    ),
                ),
                ("rank", models.PositiveIntegerField(blank=True, help_text="Largest LoRA rank.", null=True)),
                ("size_bytes", models.BigIntegerField(blank=True, null=True)),
                ("config", models.JSONField(blank=True, help_text="adapter_config.json", null=True)),
                (
                    "smoke",
                    models.JSONField(
                        blank=True, help_text="Result of the smoke test against the base model.", null=True
                    ),
                ),
                ("notes", models.TextField(blank=True)),
                (
                    "card",
                    models.TextField(
                        blank=True, db_default="", default="", help_text="Text of the adapter's README.md."
                    ),
                ),
                (
                    "card_html",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Model card as HTML, rendered at validation.",
                    ),
                ),
                ("dataset", models.CharField(blank=True, help_text="Training data.", max_length=500)),
                (
                    "run_url",
                    models.CharField(blank=True, help_text="URL of the training run.", max_length=500),
                ),
                (
                    "base_sha256",
                    models.CharField(
                        blank=True, help_text="Digest of the base checkpoint used in training.", max_length=64
                    ),
                ),
                ("deleted_at", models.DateTimeField(blank=True, db_index=True, null=True)),
                (
                    "makes_default",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="True if the bare name refers to the version once it is ready.",
                    ),
                ),
                ("attempts", models.PositiveIntegerField(default=0)),
                (
                    "lost_attempts",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Attempts that lost their process: killed, or out of memory.",
                    ),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        blank=True, help_text="Last heartbeat of the validation.", null=True
                    ),
                ),
                (
                    "retry_at",
                    models.DateTimeField(
                        blank=True, help_text="Earliest time of the next attempt.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "adapter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="adapters.adapter",
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"ordering": ("-number",)},
        ),
        migrations.AddField(
            model_name="adapter",
            name="pinned",
            field=models.ForeignKey(
                blank=True,
                help_text="Version of the bare name.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="adapters.adapterversion",
            ),
        ),
        migrations.CreateModel(
            name="Alias",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63)),
                (
                    "fallback",
                    models.JSONField(
                        blank=True, default=list, help_text="Fallback models, in order, for the alias."
                    ),
                ),
                ("moved_at", models.DateTimeField(auto_now=True)),
                (
                    "adapter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="aliases",
                        to="adapters.adapter",
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="aliases",
                        to="adapters.adapterversion",
                    ),
                ),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="AliasArm",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("percent", models.PositiveSmallIntegerField()),
                (
                    "alias",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="arms", to="adapters.alias"
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="adapters.adapterversion",
                    ),
                ),
            ],
            options={"ordering": ("pk",)},
        ),
        migrations.CreateModel(
            name="AliasChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(blank=True, help_text="'' for the bare name.", max_length=63)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                ("reason", models.CharField(blank=True, max_length=1000)),
                ("by", models.CharField(blank=True, help_text="E-mail, key or automation.", max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "adapter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alias_changes",
                        to="adapters.adapter",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.AddIndex(
            model_name="adapterversion",
            index=models.Index(
                condition=models.Q(("status", "ready"), _negated=True),
                fields=["status", "adapter"],
                name="version_not_ready",
            ),
        ),
        migrations.AddIndex(
            model_name="adapterversion",
            index=models.Index(
                fields=["adapter", "status", "deleted_at", "size_bytes"], name="version_counted"
            ),
        ),
        migrations.AddConstraint(
            model_name="adapterversion",
            constraint=models.UniqueConstraint(fields=("adapter", "number"), name="adapter_version_once"),
        ),
        migrations.AddIndex(
            model_name="adapter",
            index=models.Index(
                condition=models.Q(("deleted_at", None)), fields=["tenant", "name"], name="adapter_listed"
            ),
        ),
        migrations.AddIndex(
            model_name="adapter",
            index=models.Index(
                condition=models.Q(("deleted_at__isnull", False)),
                fields=["tenant", "name"],
                name="adapter_deleted",
            ),
        ),
        migrations.AddConstraint(
            model_name="adapter",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="adapter_once"),
        ),
        migrations.AddConstraint(
            model_name="alias",
            constraint=models.UniqueConstraint(fields=("adapter", "name"), name="alias_once"),
        ),
        migrations.AddConstraint(
            model_name="aliasarm",
            constraint=models.UniqueConstraint(fields=("alias", "version"), name="alias_arm_once"),
        ),
        migrations.AddConstraint(
            model_name="aliasarm",
            constraint=models.CheckConstraint(
                condition=models.Q(("percent__gte", 1), ("percent__lte", 99)), name="alias_arm_percent"
            ),
        ),
        migrations.AddIndex(
            model_name="aliaschange",
            index=models.Index(fields=["adapter", "alias", "-id"], name="alias_change_newest"),
        ),
    ]
