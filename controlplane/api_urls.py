"""Every REST route. tests/controlplane/test_isolation.py walks this list."""

from __future__ import annotations

from django.urls import path

from controlplane.adapters import api as adapters
from controlplane.adapters import lifecycle_api as lifecycle
from controlplane.artifacts.credentials import api as credentials
from controlplane.artifacts.uploads import api as uploads
from controlplane.billing import api as billing
from controlplane.billing import ledger_api as ledger
from controlplane.billing import prices_api as prices
from controlplane.billing.credit_notes import api as credit_notes
from controlplane.billing.invoices import api as invoices
from controlplane.billing.parties import api as parties
from controlplane.billing.reports import api as reports
from controlplane.billing.reports import openai_api, requests_api, savings_api
from controlplane.billing.taxes import api as taxes
from controlplane.canaries import api as rollouts
from controlplane.catalog import api as catalog
from controlplane.metering import api as metering
from controlplane.metering.adapter_use import adapter_is_called
from controlplane.metering.prompt_log import api as prompt_log
from controlplane.monitoring.monitoring_urls import MONITORING_ROUTES
from controlplane.operations import api as operations
from controlplane.operations.deployment_urls import DEPLOYMENT_ROUTES
from controlplane.operations.live_urls import LIVE_ROUTES
from controlplane.optimization.optimization_urls import OPTIMIZATION_ROUTES
from controlplane.tenants.api import audit, keys, me, projects, tenants
from controlplane.tenants.limits import api as limits
from controlplane.tenants.members import api as members
from controlplane.webhooks import api as webhooks

urlpatterns = [
    path("me", me.MeApi.as_view(), name="me"),
    path("adapters", adapters.AdaptersApi.as_view(is_called=adapter_is_called), name="adapters"),
    path("adapters/<str:name>", adapters.AdapterApi.as_view(), name="adapter"),
    path("adapters/<str:name>/restore", lifecycle.AdapterRestoreApi.as_view(), name="adapter-restore"),
    path("adapters/<str:name>/purge", lifecycle.AdapterPurgeApi.as_view(), name="adapter-purge"),
    path("adapters/<str:name>/pin", adapters.PinApi.as_view(), name="adapter-pin"),
    path("adapters/<str:name>/rollback", lifecycle.DefaultRollbackApi.as_view(), name="adapter-rollback"),
    path("adapters/<str:name>/fallback", adapters.FallbackApi.as_view(), name="adapter-fallback"),
    path(
        "adapters/<str:name>/versions",
        adapters.VersionsApi.as_view(is_called=adapter_is_called),
        name="versions",
    ),
    path("adapters/<str:name>/versions/<int:number>", adapters.VersionApi.as_view(), name="version"),
    path(
        "adapters/<str:name>/versions/<int:number>/restore",
        lifecycle.VersionRestoreApi.as_view(),
        name="version-restore",
    ),
    path("adapters/<str:name>/aliases", adapters.AliasesApi.as_view(), name="aliases"),
    path("adapters/<str:name>/aliases/<str:alias>", adapters.AliasApi.as_view(), name="alias"),
    path(
        "adapters/<str:name>/aliases/<str:alias>/fallback",
        adapters.AliasFallbackApi.as_view(),
        name="alias-fallback",
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/history",
        lifecycle.AliasHistoryApi.as_view(),
        name="alias-history",
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/rollback",
        lifecycle.AliasRollbackApi.as_view(),
        name="alias-rollback",
    ),
    path("adapters/<str:name>/aliases/<str:alias>/rollouts", rollouts.RolloutsApi.as_view(), name="rollouts"),
    path(
        "adapters/<str:name>/aliases/<str:alias>/rollouts/<int:rollout>",
        rollouts.RolloutApi.as_view(),
        name="rollout",
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/rollouts/<int:rollout>/pause",
        rollouts.RolloutPauseApi.as_view(),
        name="rollout-pause",
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/rollouts/<int:rollout>/resume",
        rollouts.RolloutResumeApi.as_view(),
        name="rollout-resume",
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/rollouts/<int:rollout>/abort",
        rollouts.RolloutAbortApi.as_view(),
        name="rollout-abort",
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/rollouts/<int:rollout>/promote",
        rollouts.RolloutPromoteApi.as_view(),
        name="rollout-promote",
    ),
    path(
        "adapter-checks",
        adapters.AdapterChecksApi.as_view(is_called=adapter_is_called),
        name="adapter-checks",
    ),
    path("adapter-quota", lifecycle.OwnQuotaApi.as_view(), name="adapter-quota"),
    path("keys", keys.ApiKeysApi.as_view(), name="keys"),
    path("keys/<str:public_id>", keys.ApiKeyApi.as_view(), name="key"),
    path("keys/<str:public_id>/rotate", keys.ApiKeyRotationApi.as_view(), name="key-rotate"),
    path("keys/<str:public_id>/limits", limits.KeyLimitsApi.as_view(), name="key-limits"),
    path("limits", limits.OwnLimitsApi.as_view(), name="limits"),
    path("uploads", uploads.UploadsApi.as_view(), name="uploads"),
    path("uploads/<str:upload_id>", uploads.UploadApi.as_view(), name="upload"),
    path("source-credentials", credentials.SourceCredentialsApi.as_view(), name="source-credentials"),
    path(
        "source-credentials/<str:name>", credentials.SourceCredentialApi.as_view(), name="source-credential"
    ),
    path("members", members.MembersApi.as_view(), name="members"),
    path("members/<int:user_id>", members.MemberApi.as_view(), name="member"),
    path("invitations", members.InvitationsApi.as_view(), name="invitations"),
    path("invitations/<int:invitation_id>", members.InvitationApi.as_view(), name="invitation"),
    path(
        "invitations/<int:invitation_id>/resend",
        members.InvitationResendApi.as_view(),
        name="invitation-resend",
    ),
    path("projects", projects.ProjectsApi.as_view(), name="projects"),
    path("projects/<str:project>", projects.ProjectApi.as_view(), name="project"),
    path("service-accounts", projects.ServiceAccountsApi.as_view(), name="service-accounts"),
    path("service-accounts/<str:account>", projects.ServiceAccountApi.as_view(), name="service-account"),
    path("base-models", catalog.BaseModelsApi.as_view(), name="base-models"),
    path("base-models/<str:name>", catalog.BaseModelApi.as_view(), name="base-model"),
    path("base-models/<str:name>/checkpoint", catalog.CheckpointApi.as_view(), name="checkpoint"),
    path("base-models/<str:name>/variants", catalog.VariantsApi.as_view(), name="variants"),
    path("base-models/<str:name>/variants/<str:variant>", catalog.VariantApi.as_view(), name="variant"),
    path("usage", billing.UsageApi.as_view(), name="usage"),
    path("requests", requests_api.RequestsApi.as_view(), name="requests"),
    path("requests/<str:request_id>", requests_api.RequestApi.as_view(), name="request"),
    path("requests/<str:request_id>/prompt", prompt_log.KeptPromptApi.as_view(), name="request-prompt"),
    path("prompt-log", prompt_log.PromptLogApi.as_view(), name="prompt-log"),
    path("savings", savings_api.TenantSavingsApi.as_view(), name="savings"),
    path("usage/events", metering.UsageEventsApi.as_view(), name="usage-events"),
    path(
        "organization/usage/completions",
        openai_api.CompletionsUsageApi.as_view(),
        name="organization-usage-completions",
    ),
    path("organization/costs", openai_api.CostsApi.as_view(), name="organization-costs"),
    path("hosting", metering.HostingApi.as_view(), name="hosting"),
    *LIVE_ROUTES,
    *MONITORING_ROUTES,
    path("fleet/hosting", metering.FleetHostingApi.as_view(), name="fleet-hosting"),
    path("instance-prices", reports.InstancePricesApi.as_view(), name="instance-prices"),
    path("instance-prices/aws", reports.AwsPricesApi.as_view(), name="instance-prices-aws"),
    path("fleet/attribution", reports.AttributionApi.as_view(), name="fleet-attribution"),
    path("fleet/savings", reports.SavingsApi.as_view(), name="fleet-savings"),
    path("fleet/savings/estimate", reports.SavingsEstimateApi.as_view(), name="fleet-savings-estimate"),
    path("fleet/instance-saving", reports.InstanceSavingApi.as_view(), name="fleet-instance-saving"),
    path("fleet/blended-price", reports.BlendedPriceApi.as_view(), name="fleet-blended-price"),
    path("usage-sources", metering.UsageSourcesApi.as_view(), name="usage-sources"),
    path("usage-sources/<int:source>", metering.UsageSourceApi.as_view(), name="usage-source"),
    path("fleet/usage", billing.FleetUsageApi.as_view(), name="fleet-usage"),
    path("tenants", tenants.TenantsApi.as_view(), name="tenants"),
    path("tenants/<str:slug>", tenants.TenantApi.as_view(), name="tenant"),
    path("tenants/<str:slug>/suspension", tenants.TenantSuspensionApi.as_view(), name="tenant-suspension"),
    path("tenants/<str:slug>/limits", limits.TenantLimitsApi.as_view(), name="tenant-limits"),
    path("tenants/<str:slug>/adapter-quota", lifecycle.TenantQuotaApi.as_view(), name="tenant-adapter-quota"),
    path("tenants/<str:slug>/export", operations.TenantExportApi.as_view(), name="tenant-export"),
    path("tenants/<str:slug>/deletion", operations.TenantDeletionApi.as_view(), name="tenant-deletion"),
    path("users", tenants.UsersApi.as_view(), name="users"),
    *DEPLOYMENT_ROUTES,
    *OPTIMIZATION_ROUTES,
    path("webhooks", webhooks.WebhooksApi.as_view(), name="webhooks"),
    path("webhooks/<str:endpoint_id>", webhooks.WebhookApi.as_view(), name="webhook"),
    path("webhooks/<str:endpoint_id>/rotate", webhooks.WebhookRotationApi.as_view(), name="webhook-rotate"),
    path("webhooks/<str:endpoint_id>/test", webhooks.WebhookTestApi.as_view(), name="webhook-test"),
    path(
        "webhooks/<str:endpoint_id>/deliveries",
        webhooks.WebhookDeliveriesApi.as_view(),
        name="webhook-deliveries",
    ),
    path(
        "webhooks/<str:endpoint_id>/deliveries/<int:delivery_id>/resend",
        webhooks.WebhookResendApi.as_view(),
        name="webhook-resend",
    ),
    path("audit", audit.AuditApi.as_view(), name="audit"),
    path("audit/export", audit.AuditExportApi.as_view(), name="audit-export"),
    path("audit/chain", audit.AuditChainApi.as_view(), name="audit-chain"),
    path("fleet/audit", audit.FleetAuditApi.as_view(), name="fleet-audit"),
    path("fleet/audit/export", audit.FleetAuditExportApi.as_view(), name="fleet-audit-export"),
    path("price-books", prices.PriceBooksApi.as_view(), name="price-books"),
    path("prices-in-force", prices.PricesInForceApi.as_view(), name="prices-in-force"),
    path("price-books/<str:name>", prices.PriceBookApi.as_view(), name="price-book"),
    path("price-books/<str:name>/prices", prices.PricesApi.as_view(), name="prices"),
    path("price-books/<str:name>/hosting-prices", prices.HostingPricesApi.as_view(), name="hosting-prices"),
    path("price-books/<str:name>/terms", prices.TermsApi.as_view(), name="price-book-terms"),
    path("price-books/<str:name>/terms/<int:term>", prices.TermApi.as_view(), name="price-book-term"),
    path("billing", ledger.BalanceApi.as_view(), name="billing"),
    path("billing/journal", ledger.JournalApi.as_view(), name="journal"),
    path("billing/credits", ledger.CreditsApi.as_view(), name="credits"),
    path("invoices", invoices.InvoicesApi.as_view(), name="invoices"),
    path("invoices/<int:invoice>", invoices.InvoiceApi.as_view(), name="invoice"),
    path("invoices/<int:invoice>/lines", invoices.InvoiceLinesApi.as_view(), name="invoice-lines"),
    path("invoices/<int:invoice>/file", invoices.InvoiceFileApi.as_view(), name="invoice-file"),
    path("fleet/invoices", invoices.FleetInvoicesApi.as_view(), name="fleet-invoices"),
    path(
        "fleet/invoices/<int:invoice>/file", invoices.FleetInvoiceFileApi.as_view(), name="fleet-invoice-file"
    ),
    path(
        "fleet/invoices/<int:invoice>/finalize",
        invoices.InvoiceFinalizeApi.as_view(),
        name="invoice-finalize",
    ),
    path(
        "fleet/invoices/<int:invoice>/credit-notes",
        credit_notes.InvoiceCreditNotesApi.as_view(),
        name="invoice-credit-notes",
    ),
    path("credit-notes", credit_notes.CreditNotesApi.as_view(), name="credit-notes"),
    path("credit-notes/<int:credit_note>", credit_notes.CreditNoteApi.as_view(), name="credit-note"),
    path(
        "credit-notes/<int:credit_note>/lines",
        credit_notes.CreditNoteLinesApi.as_view(),
        name="credit-note-lines",
    ),
    path(
        "credit-notes/<int:credit_note>/file",
        credit_notes.CreditNoteFileApi.as_view(),
        name="credit-note-file",
    ),
    path("fleet/credit-notes", credit_notes.FleetCreditNotesApi.as_view(), name="fleet-credit-notes"),
    path(
        "fleet/credit-notes/<int:credit_note>",
        credit_notes.FleetCreditNoteApi.as_view(),
        name="fleet-credit-note",
    ),
    path(
        "fleet/credit-notes/<int:credit_note>/void",
        credit_notes.CreditNoteVoidApi.as_view(),
        name="credit-note-void",
    ),
    path(
        "fleet/credit-notes/<int:credit_note>/file",
        credit_notes.FleetCreditNoteFileApi.as_view(),
        name="fleet-credit-note-file",
    ),
    path("seller", parties.SellerApi.as_view(), name="seller"),
    path("seller/<int:seller>", parties.SellerPlannedApi.as_view(), name="seller-planned"),
    path("billing/details", parties.BillingDetailsApi.as_view(), name="billing-details"),
    path(
        "billing/details/<int:details>",
        parties.BillingDetailsPlannedApi.as_view(),
        name="billing-details-planned",
    ),
    path(
        "tenants/<str:slug>/billing-details",
        parties.TenantBillingDetailsApi.as_view(),
        name="tenant-billing-details",
    ),
    path("billing/tax-treatments", taxes.TaxTreatmentsApi.as_view(), name="tax-treatments"),
    path(
        "tenants/<str:slug>/tax-treatments",
        taxes.TenantTaxTreatmentsApi.as_view(),
        name="tenant-tax-treatments",
    ),
    path(
        "tenants/<str:slug>/tax-treatments/<int:treatment>",
        taxes.TenantTaxTreatmentApi.as_view(),
        name="tenant-tax-treatment",
    ),
    path("tenants/<str:slug>/billing", ledger.TenantBalanceApi.as_view(), name="tenant-billing"),
    path("tenants/<str:slug>/journal", ledger.TenantJournalApi.as_view(), name="tenant-journal"),
    path(
        "tenants/<str:slug>/journal/<int:number>/reversal",
        ledger.EntryReversalApi.as_view(),
        name="entry-reversal",
    ),
    path("tenants/<str:slug>/credits", ledger.TenantCreditsApi.as_view(), name="tenant-credits"),
    path("tenants/<str:slug>/payments", ledger.TenantPaymentsApi.as_view(), name="tenant-payments"),
    path("tenants/<str:slug>/invoices", invoices.TenantInvoicesApi.as_view(), name="tenant-invoices"),
]
