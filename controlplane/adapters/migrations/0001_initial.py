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
                        serialize=False,
                        to="tenants.tenant",
                    ),
                ),
                ("adapters", models.PositiveIntegerField(null=True)),
                ("versions", models.PositiveIntegerField(null=True)),
                ("size_bytes", models.PositiveBigIntegerField(null=True)),
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
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63)),
                ("fallback", models.JSONField(default=list)),
                ("last_number", models.PositiveIntegerField(default=0)),
                ("labels", models.JSONField(default=dict)),
                ("notes", models.TextField()),
                ("deleted_at", models.DateTimeField(db_index=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "base_model",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="catalog.basemodel"),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="AdapterVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField()),
                ("status", models.CharField(default="pending", max_length=10)),
                ("reason", models.TextField()),
                ("steps", models.JSONField(default=list)),
                ("source", models.CharField(max_length=1000)),
                ("staging", models.CharField(max_length=200)),
                ("uri", models.CharField(max_length=1000)),
                ("sha256", models.CharField(max_length=64)),
                ("rank", models.PositiveIntegerField(null=True)),
                ("size_bytes", models.BigIntegerField(null=True)),
                ("config", models.JSONField(null=True)),
                ("smoke", models.JSONField(null=True)),
                ("notes", models.TextField()),
                ("card", models.TextField(db_default="", default="")),
                ("card_html", models.TextField(db_default="", default="")),
                ("dataset", models.CharField(max_length=500)),
                ("run_url", models.CharField(max_length=500)),
                ("base_sha256", models.CharField(max_length=64)),
                ("deleted_at", models.DateTimeField(db_index=True, null=True)),
                ("makes_default", models.BooleanField(db_default=False, default=False)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("lost_attempts", models.PositiveIntegerField(db_default=0, default=0)),
                ("heartbeat_at", models.DateTimeField(null=True)),
                ("retry_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "adapter",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="adapters.adapter"),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={"ordering": ("-number",)},
        ),
        migrations.AddField(
            model_name="adapter",
            name="pinned",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, to="adapters.adapterversion"
            ),
        ),
        migrations.CreateModel(
            name="Alias",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63)),
                ("fallback", models.JSONField(default=list)),
                ("moved_at", models.DateTimeField(auto_now=True)),
                (
                    "adapter",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="adapters.adapter"),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="adapters.adapterversion"
                    ),
                ),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="AliasArm",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("percent", models.PositiveSmallIntegerField()),
                (
                    "alias",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="adapters.alias"),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="adapters.adapterversion"
                    ),
                ),
            ],
            options={"ordering": ("pk",)},
        ),
        migrations.CreateModel(
            name="AliasChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("alias", models.CharField(max_length=63)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                ("reason", models.CharField(max_length=1000)),
                ("by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "adapter",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="adapters.adapter"),
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
