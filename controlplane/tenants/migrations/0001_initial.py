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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("slug", models.CharField(max_length=63)),
                ("name", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("archived_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"ordering": ("slug",)},
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.SlugField(max_length=63, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                (
                    "cache_salt",
                    models.CharField(
                        help_text="Hex salt that separates the prefix caches of tenants.", max_length=64
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "disabled_at",
                    models.DateTimeField(
                        blank=True, help_text="Scheduled for deletion; access is blocked.", null=True
                    ),
                ),
                (
                    "suspended_at",
                    models.DateTimeField(
                        blank=True, help_text="Time since which gateways refuse its requests.", null=True
                    ),
                ),
                (
                    "suspended_reason",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Reason shown to its members.",
                        max_length=500,
                    ),
                ),
                (
                    "prompt_key",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="X25519 public key, base64. Gateways encrypt stored prompts with it.",
                        max_length=44,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="User",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("password", models.CharField(max_length=128, verbose_name="password")),
                ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                (
                    "is_superuser",
                    models.BooleanField(
                        default=False,
                        help_text="Designates that this user has all permissions without explicitly assigning them.",
                        verbose_name="superuser status",
                    ),
                ),
                ("email", models.EmailField(max_length=254, unique=True)),
                ("is_staff", models.BooleanField(default=False)),
                ("is_active", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "session_epoch",
                    models.PositiveIntegerField(
                        default=0, editable=False, help_text="Incremented to end all sessions of the user."
                    ),
                ),
                (
                    "groups",
                    models.ManyToManyField(
                        blank=True,
                        help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.group",
                        verbose_name="groups",
                    ),
                ),
                (
                    "user_permissions",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Specific permissions for this user.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.permission",
                        verbose_name="user permissions",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ServiceAccount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=63)),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("owner", "Owner"),
                            ("admin", "Admin"),
                            ("engineer", "Engineer"),
                            ("billing", "Billing"),
                            ("viewer", "Viewer"),
                        ],
                        help_text="Permissions of its keys with scope `manage`.",
                        max_length=10,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("disabled_at", models.DateTimeField(blank=True, null=True)),
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
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.RESTRICT,
                        related_name="service_accounts",
                        to="tenants.project",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="service_accounts",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.AddField(
            model_name="project",
            name="tenant",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="projects", to="tenants.tenant"
            ),
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("owner", "Owner"),
                            ("admin", "Admin"),
                            ("engineer", "Engineer"),
                            ("billing", "Billing"),
                            ("viewer", "Viewer"),
                        ],
                        default="viewer",
                        max_length=10,
                    ),
                ),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("public_id", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100)),
                ("secret_sha256", models.CharField(max_length=64)),
                ("old_secret_sha256", models.CharField(blank=True, default="", max_length=64)),
                ("old_secret_until", models.DateTimeField(blank=True, null=True)),
                ("rotated_at", models.DateTimeField(blank=True, null=True)),
                (
                    "scopes",
                    models.JSONField(help_text="List of `inference`, `manage`, `usage`, `usage:write`."),
                ),
                (
                    "allowed_models",
                    models.JSONField(blank=True, help_text="List of names; null for all.", null=True),
                ),
                (
                    "allowed_endpoints",
                    models.JSONField(blank=True, help_text="Paths below /v1/; null for all.", null=True),
                ),
                (
                    "allowed_networks",
                    models.JSONField(blank=True, help_text="CIDR blocks; null for any address.", null=True),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "last_used_at",
                    models.DateTimeField(
                        blank=True, help_text="With minute precision; null if never.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
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
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.RESTRICT,
                        related_name="api_keys",
                        to="tenants.project",
                    ),
                ),
                (
                    "service_account",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.RESTRICT,
                        related_name="api_keys",
                        to="tenants.serviceaccount",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_keys",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={"ordering": ("-created_at", "public_id")},
        ),
        migrations.AddField(
            model_name="user",
            name="tenants",
            field=models.ManyToManyField(
                related_name="users", through="tenants.Membership", to="tenants.tenant"
            ),
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
