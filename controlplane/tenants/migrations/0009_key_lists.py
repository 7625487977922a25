"""The index that a tenant's list of keys is read by, and the scope that reads usage."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0008_tenant_disabled"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(fields=["tenant", "-created_at", "public_id"], name="api_key_newest"),
        ),
        migrations.AlterField(
            model_name="apikey",
            name="scopes",
            field=models.JSONField(help_text="List of `inference`, `manage`, `usage`."),
        ),
    ]
