"""Row policies of every table that holds tenants' things."""

from django.db import migrations

from controlplane.platform.row_security.policies import KEY, USER, RowPolicy, owned_by, owned_through

_MEMBER = "SELECT 1 FROM tenants_membership AS member WHERE member.tenant_id = tenants_tenant.id"
TENANTS_OF_USER = f"EXISTS ({_MEMBER} AND member.user_id::text = {USER})"


class Migration(migrations.Migration):
    dependencies = [
        ("adapters", "0003_lifecycle"),
        ("audit", "0001_initial"),
        ("credentials", "0001_initial"),
        ("limits", "0002_tenant_weight"),
        ("members", "0001_initial"),
        ("metering", "0002_arm_index"),
        ("operations", "0001_initial"),
        ("rollouts", "0001_initial"),
        ("tenants", "0007_email_addresses"),
        ("uploads", "0001_initial"),
        ("webhooks", "0001_initial"),
    ]

    operations = [
        # Who calls is found before their tenant is known: by their own memberships, or the key that they show.
        RowPolicy("tenants_tenant", f"{owned_by('id')} OR {TENANTS_OF_USER}"),
        RowPolicy("tenants_membership", f"{owned_by('tenant_id')} OR user_id::text = {USER}"),
        RowPolicy("tenants_apikey", f"{owned_by('tenant_id')} OR public_id = {KEY}"),
        *(
            RowPolicy(table, owned_by("tenant_id"))
            for table in (
                "tenants_project",
                "tenants_serviceaccount",
                "members_invitation",
                "limits_scopelimits",
                "credentials_sourcecredential",
                "adapters_adapter",
                "adapters_adapterquota",
                "uploads_upload",
                "webhooks_webhookendpoint",
                "webhooks_webhookevent",
            )
        ),
        *(
            RowPolicy(table, owned_by("tenant"))
            for table in (
                "audit_auditrecord",
                "audit_auditchain",
                "metering_usageeventrow",
                "metering_usagerollup",
                "operations_tenantdeletion",
            )
        ),
        *(
            RowPolicy(table, owned_through(table, column, parent))
            for table, column, parent in (
                ("adapters_adapterversion", "adapter_id", "adapters_adapter"),
                ("adapters_alias", "adapter_id", "adapters_adapter"),
                ("adapters_aliasarm", "alias_id", "adapters_alias"),
                ("adapters_aliaschange", "adapter_id", "adapters_adapter"),
                ("uploads_uploadpart", "upload_id", "uploads_upload"),
                ("rollouts_rollout", "adapter_id", "adapters_adapter"),
                ("rollouts_rolloutdecision", "rollout_id", "rollouts_rollout"),
                ("webhooks_webhookdelivery", "endpoint_id", "webhooks_webhookendpoint"),
            )
        ),
    ]
