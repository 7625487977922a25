"""What service accounts may report of usage from outside."""

import django.db.models.deletion
from django.db import migrations, models

from controlplane.platform.row_security.policies import RowPolicy, owned_through


class Migration(migrations.Migration):
    dependencies = [
        ("metering", "0004_partitions"),
        ("row_security", "0001_policies"),
        ("tenants", "0011_key_scope_usage_write"),
    ]

    operations = [
        migrations.CreateModel(
            name="UsageSource",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tenants",
                    models.JSONField(
                        blank=True,
                        help_text="List of tenants, with all their projects; null for every tenant.",
                        null=True,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "service_account",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="usage_source",
                        to="tenants.serviceaccount",
                    ),
                ),
            ],
            options={"ordering": ("pk",)},
        ),
        RowPolicy(
            "metering_usagesource",
            owned_through("metering_usagesource", "service_account_id", "tenants_serviceaccount"),
        ),
    ]
