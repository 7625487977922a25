"""Keys are held to models, endpoints and networks, and may have two secrets for a while."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    operations = [
        migrations.AddField(
            "apikey",
            "allowed_models",
            models.JSONField(blank=True, help_text="List of names; null for all.", null=True),
        ),
        migrations.AddField(
            "apikey",
            "allowed_endpoints",
            models.JSONField(blank=True, help_text="Paths below /v1/; null for all.", null=True),
        ),
        migrations.AddField(
            "apikey",
            "allowed_networks",
            models.JSONField(blank=True, help_text="CIDRs; null for everywhere.", null=True),
        ),
        migrations.AddField(
            "apikey", "old_secret_sha256", models.CharField(blank=True, default="", max_length=64)
        ),
        migrations.AddField("apikey", "old_secret_until", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("apikey", "rotated_at", models.DateTimeField(blank=True, null=True)),
    ]
