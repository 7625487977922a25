"""Indexes that lists are read by."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("adapters", "0004_lost_attempts"),
    ]

    operations = [
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
        migrations.AddIndex(
            model_name="adapterversion",
            index=models.Index(
                condition=models.Q(("status", "ready"), _negated=True),
                fields=["status", "adapter"],
                name="version_not_ready",
            ),
        ),
    ]
