"""Users who came before allauth have their address proven: staff made them."""

from __future__ import annotations

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def prove(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    addresses = apps.get_model("account", "EmailAddress").objects
    for user in apps.get_model("tenants", "User").objects.iterator():
        addresses.get_or_create(user=user, email=user.email, defaults={"primary": True, "verified": True})


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0006_keys_project"),
        ("account", "0009_emailaddress_unique_primary_email"),
    ]

    operations = [migrations.RunPython(prove, migrations.RunPython.noop)]
