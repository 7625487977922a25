"""Every REST route. tests/controlplane/test_isolation.py walks this list."""

from __future__ import annotations

from typing import Final

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
from controlplane.platform.http.routes import route
from controlplane.tenants.api import audit, keys, me, projects, staff_tokens, tenants
from controlplane.tenants.limits import api as limits
from controlplane.tenants.members import api as members
from controlplane.webhooks import api as webhooks

_ROLLOUT: Final = "adapters/<str:name>/aliases/<str:alias>/rollouts/<int:rollout>"
_ALIAS: Final = "adapters/<str:name>/aliases/<str:alias>"
_ADAPTER: Final = "adapters/<str:name>"
_FLEET_NOTE: Final = "fleet/credit-notes/<int:credit_note>"
_TENANT: Final = "tenants/<str:slug>"
_FLEET_INVOICE: Final = "fleet/invoices/<int:invoice>"

urlpatterns = [
    route("me", me.MeApi, "me"),
    route("adapters", adapters.AdaptersApi, "adapters", is_called=adapter_is_called),
    route(_ADAPTER, adapters.AdapterApi, "adapter"),
    route(f"{_ADAPTER}/restore", lifecycle.AdapterRestoreApi, "adapter-restore"),
    route(f"{_ADAPTER}/purge", lifecycle.AdapterPurgeApi, "adapter-purge"),
    route(f"{_ADAPTER}/pin", adapters.PinApi, "adapter-pin"),
    route(f"{_ADAPTER}/rollback", lifecycle.DefaultRollbackApi, "adapter-rollback"),
    route(f"{_ADAPTER}/fallback", adapters.FallbackApi, "adapter-fallback"),
    route(f"{_ADAPTER}/versions", adapters.VersionsApi, "versions", is_called=adapter_is_called),
    route(f"{_ADAPTER}/versions/<int:number>", adapters.VersionApi, "version"),
    route(f"{_ADAPTER}/versions/<int:number>/restore", lifecycle.VersionRestoreApi, "version-restore"),
    route(f"{_ADAPTER}/aliases", adapters.AliasesApi, "aliases"),
    route(_ALIAS, adapters.AliasApi, "alias"),
    route(f"{_ALIAS}/fallback", adapters.AliasFallbackApi, "alias-fallback"),
    route(f"{_ALIAS}/history", lifecycle.AliasHistoryApi, "alias-history"),
    route(f"{_ALIAS}/rollback", lifecycle.AliasRollbackApi, "alias-rollback"),
    route(f"{_ALIAS}/rollouts", rollouts.RolloutsApi, "rollouts"),
    route(_ROLLOUT, rollouts.RolloutApi, "rollout"),
    route(f"{_ROLLOUT}/pause", rollouts.RolloutPauseApi, "rollout-pause"),
    route(f"{_ROLLOUT}/resume", rollouts.RolloutResumeApi, "rollout-resume"),
    route(f"{_ROLLOUT}/abort", rollouts.RolloutAbortApi, "rollout-abort"),
    route(f"{_ROLLOUT}/promote", rollouts.RolloutPromoteApi, "rollout-promote"),
    route("adapter-checks", adapters.AdapterChecksApi, "adapter-checks", is_called=adapter_is_called),
    route("adapter-quota", lifecycle.OwnQuotaApi, "adapter-quota"),
    route("keys", keys.ApiKeysApi, "keys"),
    route("keys/<str:public_id>", keys.ApiKeyApi, "key"),
    route("keys/<str:public_id>/rotate", keys.ApiKeyRotationApi, "key-rotate"),
    route("keys/<str:public_id>/limits", limits.KeyLimitsApi, "key-limits"),
    route("limits", limits.OwnLimitsApi, "limits"),
    route("staff-tokens", staff_tokens.StaffTokensApi, "staff-tokens"),
    route("staff-tokens/<str:token_id>", staff_tokens.StaffTokenApi, "staff-token"),
    route("uploads", uploads.UploadsApi, "uploads"),
    route("uploads/<str:upload_id>", uploads.UploadApi, "upload"),
    route("source-credentials", credentials.SourceCredentialsApi, "source-credentials"),
    route("source-credentials/<str:name>", credentials.SourceCredentialApi, "source-credential"),
    route("members", members.MembersApi, "members"),
    route("members/<int:user_id>", members.MemberApi, "member"),
    route("invitations", members.InvitationsApi, "invitations"),
    route("invitations/<int:invitation_id>", members.InvitationApi, "invitation"),
    route("invitations/<int:invitation_id>/resend", members.InvitationResendApi, "invitation-resend"),
    route("projects", projects.ProjectsApi, "projects"),
    route("projects/<str:project>", projects.ProjectApi, "project"),
    route("service-accounts", projects.ServiceAccountsApi, "service-accounts"),
    route("service-accounts/<str:account>", projects.ServiceAccountApi, "service-account"),
    route("base-models", catalog.BaseModelsApi, "base-models"),
    route("base-models/<str:name>", catalog.BaseModelApi, "base-model"),
    route("base-models/<str:name>/checkpoint", catalog.CheckpointApi, "checkpoint"),
    route("base-models/<str:name>/refresh", catalog.BaseModelRefreshApi, "base-model-refresh"),
    route("base-models/<str:name>/variants", catalog.VariantsApi, "variants"),
    route("base-models/<str:name>/variants/<str:variant>", catalog.VariantApi, "variant"),
    route("usage", billing.UsageApi, "usage"),
    route("requests", requests_api.RequestsApi, "requests"),
    route("requests/<str:request_id>", requests_api.RequestApi, "request"),
    route("requests/<str:request_id>/prompt", prompt_log.KeptPromptApi, "request-prompt"),
    route("prompt-log", prompt_log.PromptLogApi, "prompt-log"),
    route("savings", savings_api.TenantSavingsApi, "savings"),
    route("usage/events", metering.UsageEventsApi, "usage-events"),
    route("organization/usage/completions", openai_api.CompletionsUsageApi, "organization-usage-completions"),
    route("organization/costs", openai_api.CostsApi, "organization-costs"),
    route("hosting", metering.HostingApi, "hosting"),
    *LIVE_ROUTES,
    *MONITORING_ROUTES,
    route("fleet/hosting", metering.FleetHostingApi, "fleet-hosting"),
    route("instance-prices", reports.InstancePricesApi, "instance-prices"),
    route("instance-prices/aws", reports.AwsPricesApi, "instance-prices-aws"),
    route("fleet/attribution", reports.AttributionApi, "fleet-attribution"),
    route("fleet/savings", reports.SavingsApi, "fleet-savings"),
    route("fleet/savings/estimate", reports.SavingsEstimateApi, "fleet-savings-estimate"),
    route("fleet/instance-saving", reports.InstanceSavingApi, "fleet-instance-saving"),
    route("fleet/blended-price", reports.BlendedPriceApi, "fleet-blended-price"),
    route("usage-sources", metering.UsageSourcesApi, "usage-sources"),
    route("usage-sources/<int:source>", metering.UsageSourceApi, "usage-source"),
    route("fleet/usage", billing.FleetUsageApi, "fleet-usage"),
    route("tenants", tenants.TenantsApi, "tenants"),
    route(_TENANT, tenants.TenantApi, "tenant"),
    route(f"{_TENANT}/suspension", tenants.TenantSuspensionApi, "tenant-suspension"),
    route(f"{_TENANT}/limits", limits.TenantLimitsApi, "tenant-limits"),
    route(f"{_TENANT}/adapter-quota", lifecycle.TenantQuotaApi, "tenant-adapter-quota"),
    route(f"{_TENANT}/export", operations.TenantExportApi, "tenant-export"),
    route(f"{_TENANT}/deletion", operations.TenantDeletionApi, "tenant-deletion"),
    route("users", tenants.UsersApi, "users"),
    *DEPLOYMENT_ROUTES,
    *OPTIMIZATION_ROUTES,
    route("webhooks", webhooks.WebhooksApi, "webhooks"),
    route("webhooks/<str:endpoint_id>", webhooks.WebhookApi, "webhook"),
    route("webhooks/<str:endpoint_id>/rotate", webhooks.WebhookRotationApi, "webhook-rotate"),
    route("webhooks/<str:endpoint_id>/test", webhooks.WebhookTestApi, "webhook-test"),
    route("webhooks/<str:endpoint_id>/deliveries", webhooks.WebhookDeliveriesApi, "webhook-deliveries"),
    route(
        "webhooks/<str:endpoint_id>/deliveries/<int:delivery_id>/resend",
        webhooks.WebhookResendApi,
        "webhook-resend",
    ),
    route("audit", audit.AuditApi, "audit"),
    route("audit/export", audit.AuditExportApi, "audit-export"),
    route("audit/chain", audit.AuditChainApi, "audit-chain"),
    route("fleet/audit", audit.FleetAuditApi, "fleet-audit"),
    route("fleet/audit/export", audit.FleetAuditExportApi, "fleet-audit-export"),
    route("price-books", prices.PriceBooksApi, "price-books"),
    route("prices-in-force", prices.PricesInForceApi, "prices-in-force"),
    route("price-books/<str:name>", prices.PriceBookApi, "price-book"),
    route("price-books/<str:name>/prices", prices.PricesApi, "prices"),
    route("price-books/<str:name>/hosting-prices", prices.HostingPricesApi, "hosting-prices"),
    route("price-books/<str:name>/terms", prices.TermsApi, "price-book-terms"),
    route("price-books/<str:name>/terms/<int:term>", prices.TermApi, "price-book-term"),
    route("billing", ledger.BalanceApi, "billing"),
    route("billing/journal", ledger.JournalApi, "journal"),
    route("billing/credits", ledger.CreditsApi, "credits"),
    route("invoices", invoices.InvoicesApi, "invoices"),
    route("invoices/<int:invoice>", invoices.InvoiceApi, "invoice"),
    route("invoices/<int:invoice>/lines", invoices.InvoiceLinesApi, "invoice-lines"),
    route("invoices/<int:invoice>/file", invoices.InvoiceFileApi, "invoice-file"),
    route("fleet/invoices", invoices.FleetInvoicesApi, "fleet-invoices"),
    route(f"{_FLEET_INVOICE}/file", invoices.FleetInvoiceFileApi, "fleet-invoice-file"),
    route(f"{_FLEET_INVOICE}/finalize", invoices.InvoiceFinalizeApi, "invoice-finalize"),
    route(f"{_FLEET_INVOICE}/credit-notes", credit_notes.InvoiceCreditNotesApi, "invoice-credit-notes"),
    route("credit-notes", credit_notes.CreditNotesApi, "credit-notes"),
    route("credit-notes/<int:credit_note>", credit_notes.CreditNoteApi, "credit-note"),
    route("credit-notes/<int:credit_note>/lines", credit_notes.CreditNoteLinesApi, "credit-note-lines"),
    route("credit-notes/<int:credit_note>/file", credit_notes.CreditNoteFileApi, "credit-note-file"),
    route("fleet/credit-notes", credit_notes.FleetCreditNotesApi, "fleet-credit-notes"),
    route(_FLEET_NOTE, credit_notes.FleetCreditNoteApi, "fleet-credit-note"),
    route(f"{_FLEET_NOTE}/void", credit_notes.CreditNoteVoidApi, "credit-note-void"),
    route(f"{_FLEET_NOTE}/file", credit_notes.FleetCreditNoteFileApi, "fleet-credit-note-file"),
    route("seller", parties.SellerApi, "seller"),
    route("seller/<int:seller>", parties.SellerPlannedApi, "seller-planned"),
    route("billing/details", parties.BillingDetailsApi, "billing-details"),
    route("billing/details/<int:details>", parties.BillingDetailsPlannedApi, "billing-details-planned"),
    route(f"{_TENANT}/billing-details", parties.TenantBillingDetailsApi, "tenant-billing-details"),
    route("billing/tax-treatments", taxes.TaxTreatmentsApi, "tax-treatments"),
    route(f"{_TENANT}/tax-treatments", taxes.TenantTaxTreatmentsApi, "tenant-tax-treatments"),
    route(f"{_TENANT}/tax-treatments/<int:treatment>", taxes.TenantTaxTreatmentApi, "tenant-tax-treatment"),
    route(f"{_TENANT}/billing", ledger.TenantBalanceApi, "tenant-billing"),
    route(f"{_TENANT}/journal", ledger.TenantJournalApi, "tenant-journal"),
    route(f"{_TENANT}/journal/<int:number>/reversal", ledger.EntryReversalApi, "entry-reversal"),
    route(f"{_TENANT}/credits", ledger.TenantCreditsApi, "tenant-credits"),
    route(f"{_TENANT}/payments", ledger.TenantPaymentsApi, "tenant-payments"),
    route(f"{_TENANT}/invoices", invoices.TenantInvoicesApi, "tenant-invoices"),
]
