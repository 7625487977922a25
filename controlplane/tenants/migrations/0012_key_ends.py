"""The index by which the home page finds keys that end soon."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0011_key_scope_usage_write"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(
                fields=["tenant", "expires_at"],
                condition=models.Q(revoked_at=None, expires_at__isnull=False),
                name="api_key_ends",
            ),
        ),
    ]
