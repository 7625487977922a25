"""Row policies of every table that holds tenants' rows, and search by name under them."""

from django.db import migrations

from controlplane.platform.row_security.name_search import ADAPTER_NAMES, API_KEY_NAMES, NameSearch
from controlplane.platform.row_security.policies import KEY, TENANT, USER, RowPolicy, owned_by, owned_through

_MEMBER = "SELECT 1 FROM tenants_membership AS member WHERE member.tenant_id = tenants_tenant.id"
_OF_USER = f"user_id::text = {USER}"


class Migration(migrations.Migration):
    dependencies = [
        (app, "0001_initial")
        for app in (
            "adapters",
            "audit",
            "billing",
            "credentials",
            "limits",
            "members",
            "metering",
            "operations",
            "canaries",
            "prompt_log",
            "tenants",
            "uploads",
            "webhooks",
        )
    ]

    operations = [
        # A caller is found before their tenant is known: by their own memberships, or by the key they show.
        RowPolicy("tenants_tenant", owned_by("id"), find=f"EXISTS ({_MEMBER} AND member.{_OF_USER})"),
        RowPolicy("tenants_membership", owned_by("tenant_id"), find=_OF_USER),
        RowPolicy("tenants_apikey", owned_by("tenant_id"), find=f"public_id = {KEY}"),
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
                "prompt_log_promptlog",
                "prompt_log_keptprompt",
            )
        ),
        *(
            RowPolicy(table, owned_by("tenant"))
            for table in (
                "audit_auditrecord",
                "audit_auditchain",
                "metering_deadusageevent",
                "metering_hostinghour",
                "metering_hostingspan",
                "metering_usageeventrow",
                "metering_usagerollup",
                "metering_usagehour",
                "operations_tenantdeletion",
                "billing_billingparty",
                "billing_budgetnotice",
                "billing_creditgrant",
                "billing_creditnote",
                "billing_invoice",
                "billing_journalentry",
                "billing_ledgercheckpoint",
                "billing_ledgerhead",
                "billing_postedday",
                "billing_prepaidmark",
                "billing_taxtreatment",
                "billing_usageposting",
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
                ("metering_usagesource", "service_account_id", "tenants_serviceaccount"),
                ("canaries_rollout", "adapter_id", "adapters_adapter"),
                ("canaries_rolloutdecision", "rollout_id", "canaries_rollout"),
                ("webhooks_webhookdelivery", "endpoint_id", "webhooks_webhookendpoint"),
                ("billing_invoiceline", "invoice_id", "billing_invoice"),
                ("billing_invoicepdf", "invoice_id", "billing_invoice"),
                ("billing_creditnoteline", "credit_note_id", "billing_creditnote"),
                ("billing_creditnotepdf", "credit_note_id", "billing_creditnote"),
            )
        ),
        # Everyone's terms are everyone's to read: a tenant's usage is priced by them. The caller must be known.
        RowPolicy(
            "billing_pricebookterm",
            f"{owned_by('tenant')} OR (tenant = '' AND (SELECT {TENANT}) IS NOT NULL)",
        ),
        NameSearch(ADAPTER_NAMES),
        NameSearch(API_KEY_NAMES),
    ]
