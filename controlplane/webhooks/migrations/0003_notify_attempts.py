"""Who has been written to that an endpoint was given up, and how often that was tried."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("webhooks", "0002_notify_at"),
    ]

    operations = [
        migrations.AddField(
            model_name="webhookendpoint",
            name="notified",
            field=models.JSONField(
                blank=True, help_text="Ids of the users who need not be written to any more.", null=True
            ),
        ),
        migrations.AddField(
            model_name="webhookendpoint",
            name="notify_attempts",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
    ]
