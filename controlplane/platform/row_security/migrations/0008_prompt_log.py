"""Row policies of kept prompts."""

from django.db import migrations

from controlplane.platform.row_security.policies import RowPolicy, owned_by


class Migration(migrations.Migration):
    dependencies = [
        ("prompt_log", "0001_initial"),
        ("row_security", "0007_billing_parties"),
    ]

    operations = [
        RowPolicy("prompt_log_promptlog", owned_by("tenant_id")),
        RowPolicy("prompt_log_keptprompt", owned_by("tenant_id")),
    ]
