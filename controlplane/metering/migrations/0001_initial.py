import django.db.models.deletion
from django.db import migrations, models

from controlplane.metering.schema import partition_events


class Migration(migrations.Migration):
    initial = True

    dependencies = [("tenants", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="DeadUsageEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("stream_id", models.CharField(max_length=50, unique=True)),
                ("tenant", models.CharField(db_default="", default="", max_length=200)),
                ("payload", models.TextField()),
                ("reason", models.TextField()),
                ("received_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="HostingObservation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("at", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="HostingHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=12)),
                ("tenant", models.CharField(max_length=200)),
                ("base_model", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("deployment", models.CharField(max_length=200)),
                ("tier", models.CharField(max_length=10)),
                ("instance_type", models.CharField(max_length=40)),
                ("day", models.DateField()),
                ("hour", models.SmallIntegerField()),
                ("quantity_seconds", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "tenant",
                            "day",
                            "hour",
                            "kind",
                            "base_model",
                            "adapter",
                            "deployment",
                            "tier",
                            "instance_type",
                        ),
                        name="hosting_hour_once",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="HostingSpan",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=12)),
                ("tenant", models.CharField(max_length=200)),
                ("base_model", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("deployment", models.CharField(max_length=200)),
                ("tier", models.CharField(max_length=10)),
                ("instance_type", models.CharField(max_length=40)),
                ("subject", models.CharField(max_length=200)),
                ("quantity", models.BigIntegerField()),
                ("started_at", models.BigIntegerField()),
                ("ended_at", models.BigIntegerField(null=True)),
                ("counted_to", models.BigIntegerField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("ended_at", None), ("counted_to__lt", models.F("ended_at")), _connector="OR"
                        ),
                        fields=["counted_to"],
                        name="hosting_span_uncounted",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("kind", "subject"),
                        name="hosting_span_open_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("counted_to__gte", models.F("started_at"))),
                        name="hosting_span_counted",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageEventRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("event_id", models.UUIDField()),
                ("day", models.DateField()),
                ("hour", models.SmallIntegerField(db_default=0)),
                ("tenant", models.CharField(max_length=200)),
                ("project", models.CharField(max_length=200)),
                ("key_id", models.CharField(max_length=200)),
                ("request_id", models.CharField(max_length=200)),
                ("attempt", models.IntegerField()),
                ("requested_model", models.CharField(max_length=200)),
                ("alias", models.CharField(max_length=200)),
                ("arm", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("base_model", models.CharField(max_length=200)),
                ("backend", models.CharField(max_length=200)),
                ("endpoint", models.CharField(max_length=200)),
                ("status", models.CharField(max_length=20)),
                ("error_code", models.CharField(max_length=200)),
                ("prompt_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("estimated", models.BooleanField()),
                ("ttft_ms", models.FloatField(null=True)),
                ("duration_ms", models.FloatField()),
                ("started_at", models.BigIntegerField()),
                ("gateway_id", models.CharField(max_length=200)),
                ("itl_ms", models.FloatField(null=True)),
                ("reasoning_tokens", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("arm__gt", "")),
                        fields=["tenant", "adapter", "started_at"],
                        name="usage_event_arm",
                    ),
                    models.Index(fields=["tenant", "event_id"], name="usage_event_listed"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("day", "tenant", "request_id", "attempt"), name="usage_event_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("day", models.DateField()),
                ("tenant", models.CharField(max_length=200)),
                ("project", models.CharField(max_length=200)),
                ("key_id", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("alias", models.CharField(max_length=200)),
                ("arm", models.CharField(db_default="", default="", max_length=200)),
                ("base_model", models.CharField(max_length=200)),
                ("backend", models.CharField(max_length=200)),
                ("status", models.CharField(max_length=20)),
                ("requests", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("estimated_requests", models.BigIntegerField(db_default=0, default=0)),
                ("hour", models.SmallIntegerField()),
                ("reasoning_tokens", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "tenant",
                            "day",
                            "hour",
                            "project",
                            "key_id",
                            "adapter",
                            "alias",
                            "arm",
                            "base_model",
                            "backend",
                            "status",
                        ),
                        name="usage_hour_once",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="UsageRollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("day", models.DateField()),
                ("tenant", models.CharField(max_length=200)),
                ("project", models.CharField(max_length=200)),
                ("key_id", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("alias", models.CharField(max_length=200)),
                ("arm", models.CharField(db_default="", default="", max_length=200)),
                ("base_model", models.CharField(max_length=200)),
                ("backend", models.CharField(max_length=200)),
                ("status", models.CharField(max_length=20)),
                ("requests", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("estimated_requests", models.BigIntegerField(db_default=0, default=0)),
                ("reasoning_tokens", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "tenant",
                            "day",
                            "project",
                            "key_id",
                            "adapter",
                            "alias",
                            "arm",
                            "base_model",
                            "backend",
                            "status",
                        ),
                        name="usage_rollup_once",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="UsageSource",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("tenants", models.JSONField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "service_account",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, to="tenants.serviceaccount"
                    ),
                ),
            ],
            options={"ordering": ("pk",)},
        ),
        migrations.CreateModel(
            name="AdapterHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("day", models.DateField()),
                ("hour", models.SmallIntegerField()),
                ("tenant", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("endpoint", models.CharField(max_length=200)),
                ("status", models.CharField(max_length=20)),
                ("error_code", models.CharField(max_length=200)),
                ("requests", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "adapter", "day", "hour", "endpoint", "status", "error_code"),
                        name="adapter_hour_once",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="LatencyHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("day", models.DateField()),
                ("hour", models.SmallIntegerField()),
                ("tenant", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("endpoint", models.CharField(max_length=200)),
                ("metric", models.CharField(max_length=4)),
                ("bucket", models.SmallIntegerField()),
                ("requests", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "adapter", "day", "hour", "endpoint", "metric", "bucket"),
                        name="latency_hour_once",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="PendingLatencies",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("day", models.DateField()),
                ("hour", models.SmallIntegerField()),
                ("tenant", models.CharField(max_length=200)),
                ("adapter", models.CharField(max_length=200)),
                ("endpoint", models.CharField(max_length=200)),
                ("ttft", models.TextField()),
                ("itl", models.TextField()),
            ],
        ),
        migrations.RunPython(partition_events, migrations.RunPython.noop),
    ]
