"""When a tenant's admins are written to about an endpoint that was given up."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("webhooks", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="webhookendpoint",
            name="notify_at",
            field=models.DateTimeField(
                blank=True,
                help_text="When its tenant's admins are to be written to, that it is disabled.",
                null=True,
            ),
        ),
    ]
