"""Owner and member become owner, admin, engineer, billing and viewer; a member was what an engineer is."""

from __future__ import annotations

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def members_to_engineers(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("tenants", "Membership").objects.filter(role="member").update(role="engineer")


def engineers_to_members(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("tenants", "Membership").objects.exclude(role="owner").update(role="member")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_key_scopes_and_rotation")]

    operations = [
        migrations.AlterField(
            "membership",
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
        migrations.RunPython(members_to_engineers, engineers_to_members),
    ]
