import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("tenants", "0001_initial"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="WebhookEndpoint",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("url", models.CharField(max_length=1000)),
                ("description", models.CharField(max_length=200)),
                ("events", models.JSONField()),
                ("secret", models.TextField()),
                ("old_secret", models.TextField()),
                ("old_secret_until", models.DateTimeField(null=True)),
                ("failing_since", models.DateTimeField(null=True)),
                ("disabled_at", models.DateTimeField(null=True)),
                ("disabled_reason", models.CharField(max_length=300)),
                ("notify_at", models.DateTimeField(null=True)),
                ("notify_attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("notified", models.JSONField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
            options={"ordering": ("-created_at", "id")},
        ),
        migrations.CreateModel(
            name="WebhookEvent",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("type", models.CharField(max_length=60)),
                ("data", models.JSONField()),
                ("created_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                (
                    "tenant",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="tenants.tenant"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("status", models.CharField(default="pending", max_length=10)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("next_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("queued_at", models.DateTimeField(null=True)),
                ("last_at", models.DateTimeField(null=True)),
                ("last_status", models.PositiveSmallIntegerField(null=True)),
                ("last_answer", models.CharField(max_length=500)),
                ("last_ms", models.PositiveIntegerField(null=True)),
                (
                    "endpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="webhooks.webhookendpoint"
                    ),
                ),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="webhooks.webhookevent"
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status__in", ("pending", "sending"))),
                        fields=["next_at"],
                        name="webhook_delivery_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("event", "endpoint"), name="webhook_delivery_once")
                ],
            },
        ),
    ]
