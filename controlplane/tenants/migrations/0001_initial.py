import django.db.models.deletion
import django.db.models.functions.text
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("auth", "0012_alter_user_first_name_max_length")]

    operations = [
        migrations.CreateModel(
            name="Project",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("slug", models.CharField(max_length=63)),
                ("name", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("archived_at", models.DateTimeField(null=True)),
            ],
            options={"ordering": ("slug",)},
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.SlugField(max_length=63, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                ("cache_salt", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("disabled_at", models.DateTimeField(null=True)),
                ("suspended_at", models.DateTimeField(null=True)),
                ("suspended_reason", models.CharField(db_default="", default="", max_length=500)),
                ("prompt_key", models.CharField(db_default="", default="", max_length=44)),
            ],
        ),
        migrations.CreateModel(
            name="User",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("password", models.CharField(max_length=128)),
                ("last_login", models.DateTimeField(null=True)),
                ("is_superuser", models.BooleanField(default=False)),
                ("email", models.EmailField(max_length=254, unique=True)),
                ("is_staff", models.BooleanField(default=False)),
                ("is_active", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("session_epoch", models.PositiveIntegerField(default=0, editable=False)),
                ("groups", models.ManyToManyField(related_query_name="user", to="auth.group")),
                ("user_permissions", models.ManyToManyField(related_query_name="user", to="auth.permission")),
            ],
        ),
        migrations.CreateModel(
            name="ServiceAccount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63)),
                ("role", models.CharField(max_length=10)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("disabled_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, to="tenants.project"),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.AddField(
            model_name="project",
            name="tenant",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("role", models.CharField(default="viewer", max_length=10)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("public_id", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100)),
                ("secret_sha256", models.CharField(max_length=64)),
                ("old_secret_sha256", models.CharField(default="", max_length=64)),
                ("old_secret_until", models.DateTimeField(null=True)),
                ("rotated_at", models.DateTimeField(null=True)),
                ("scopes", models.JSONField()),
                ("allowed_models", models.JSONField(null=True)),
                ("allowed_endpoints", models.JSONField(null=True)),
                ("allowed_networks", models.JSONField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("revoked_at", models.DateTimeField(null=True)),
                ("last_used_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, to="tenants.project"),
                ),
                (
                    "service_account",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.RESTRICT, to="tenants.serviceaccount"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
            options={"ordering": ("-created_at", "public_id")},
        ),
        migrations.AddField(
            model_name="user",
            name="tenants",
            field=models.ManyToManyField(through="tenants.Membership", to="tenants.tenant"),
        ),
        migrations.AddConstraint(
            model_name="serviceaccount",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="service_account_once"),
        ),
        migrations.AddConstraint(
            model_name="project",
            constraint=models.UniqueConstraint(fields=("tenant", "slug"), name="project_once"),
        ),
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.UniqueConstraint(fields=("user", "tenant"), name="membership_once"),
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(fields=["tenant", "-created_at", "public_id"], name="api_key_newest"),
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(
                condition=models.Q(("expires_at__isnull", False), ("revoked_at", None)),
                fields=["tenant", "expires_at"],
                name="api_key_ends",
            ),
        ),
        migrations.AddConstraint(
            model_name="user",
            constraint=models.UniqueConstraint(
                django.db.models.functions.text.Lower("email"), name="user_email_any_case"
            ),
        ),
    ]
