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
                ("description", models.CharField(blank=True, max_length=200)),
                ("events", models.JSONField(help_text="List of event types.")),
                ("secret", models.TextField(help_text="Sealed; signs.")),
                (
                    "old_secret",
                    models.TextField(
                        blank=True, help_text="Encrypted; signs as well until `old_secret_until`."
                    ),
                ),
                ("old_secret_until", models.DateTimeField(blank=True, null=True)),
                (
                    "failing_since",
                    models.DateTimeField(
                        blank=True, help_text="First failure since the last success.", null=True
                    ),
                ),
                ("disabled_at", models.DateTimeField(blank=True, null=True)),
                ("disabled_reason", models.CharField(blank=True, max_length=300)),
                (
                    "notify_at",
                    models.DateTimeField(
                        blank=True, help_text="When the mail about its disabling is due.", null=True
                    ),
                ),
                ("notify_attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                (
                    "notified",
                    models.JSONField(
                        blank=True,
                        help_text="Ids of users who have received the mail or no longer need it.",
                        null=True,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="webhook_endpoints",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={"ordering": ("-created_at", "id")},
        ),
        migrations.CreateModel(
            name="WebhookEvent",
            fields=[
                (
                    "id",
                    models.CharField(
                        help_text="`webhook-id`, the same for all attempts.",
                        max_length=40,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("type", models.CharField(max_length=60)),
                ("data", models.JSONField()),
                ("created_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="webhook_events",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("sending", "Sending"),
                            ("delivered", "Delivered"),
                            ("failed", "Failed"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("attempts", models.PositiveIntegerField(default=0)),
                (
                    "next_at",
                    models.DateTimeField(
                        default=django.utils.timezone.now,
                        help_text="Next attempt while pending; end of the lease while sending.",
                    ),
                ),
                ("queued_at", models.DateTimeField(blank=True, null=True)),
                ("last_at", models.DateTimeField(blank=True, null=True)),
                (
                    "last_status",
                    models.PositiveSmallIntegerField(blank=True, help_text="HTTP status.", null=True),
                ),
                (
                    "last_answer",
                    models.CharField(
                        blank=True, help_text="First part of the response, or the error.", max_length=500
                    ),
                ),
                ("last_ms", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "endpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="webhooks.webhookendpoint",
                    ),
                ),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="webhooks.webhookevent",
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
