"""Row policies of the sums by adapter, and of alarms. An operator's alarm belongs to no tenant."""

from django.db import migrations

from controlplane.platform.row_security.policies import RowPolicy, owned_by, owned_through


class Migration(migrations.Migration):
    dependencies = [("row_security", "0001_policies"), ("monitoring", "0001_initial")]

    operations = [
        RowPolicy("metering_adapterhour", owned_by("tenant")),
        RowPolicy("metering_latencyhour", owned_by("tenant")),
        RowPolicy("monitoring_alarm", owned_by("tenant_id")),
        RowPolicy(
            "monitoring_alarmchange", owned_through("monitoring_alarmchange", "alarm_id", "monitoring_alarm")
        ),
    ]
