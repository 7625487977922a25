"""Row policy of the latencies that are not yet in the hourly histograms."""

from django.db import migrations

from controlplane.platform.row_security.policies import RowPolicy, owned_by


class Migration(migrations.Migration):
    dependencies = [("row_security", "0002_monitoring")]

    operations = [RowPolicy("metering_pendinglatencies", owned_by("tenant"))]
