"""Projects and service accounts; users' session epoch. Keys get their project's row in 0005 and 0006."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

ROLES = [
    ("owner", "Owner"),
    ("admin", "Admin"),
    ("engineer", "Engineer"),
    ("billing", "Billing"),
    ("viewer", "Viewer"),
]


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_roles")]

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
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="projects",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={"ordering": ("slug",)},
        ),
        migrations.AddConstraint(
            "project", models.UniqueConstraint(fields=("tenant", "slug"), name="project_once")
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
                        choices=ROLES, help_text="What its keys with scope `manage` may do.", max_length=10
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
        migrations.AddConstraint(
            "serviceaccount",
            models.UniqueConstraint(fields=("tenant", "name"), name="service_account_once"),
        ),
        migrations.AddField(
            "membership", "created_at", models.DateTimeField(default=django.utils.timezone.now)
        ),
        migrations.AddField(
            "user",
            "session_epoch",
            models.PositiveIntegerField(
                default=0, editable=False, help_text="Counted up to end all of the user's sessions."
            ),
        ),
        migrations.RenameField("apikey", "project", "project_slug"),
        migrations.AddField(
            "apikey",
            "project",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.RESTRICT,
                related_name="api_keys",
                to="tenants.project",
            ),
        ),
        migrations.AddField(
            "apikey",
            "service_account",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.RESTRICT,
                related_name="api_keys",
                to="tenants.serviceaccount",
            ),
        ),
    ]
