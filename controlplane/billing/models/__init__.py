"""Rows of billing: prices, the ledger, invoices."""

from __future__ import annotations

from controlplane.billing.models.budgets import BudgetNotice, PrepaidMark
from controlplane.billing.models.credit_notes import CreditNote, CreditNoteLine, CreditNotePdf
from controlplane.billing.models.documents import StoredPdf
from controlplane.billing.models.invoices import Invoice, InvoiceLine, InvoicePdf
from controlplane.billing.models.ledger import (
    TOP_UPS,
    Account,
    CreditGrant,
    EntryKind,
    JournalEntry,
    LedgerCheckpoint,
    LedgerHead,
    PostedDay,
    UsagePosting,
)
from controlplane.billing.models.parties import BillingParty
from controlplane.billing.models.prices import HostingPrice, Price, PriceBook, PriceBookTerm
from controlplane.billing.models.taxes import TaxKind, TaxTreatment

__all__ = [
    "TOP_UPS",
    "Account",
    "BillingParty",
    "BudgetNotice",
    "CreditGrant",
    "CreditNote",
    "CreditNoteLine",
    "CreditNotePdf",
    "EntryKind",
    "HostingPrice",
    "Invoice",
    "InvoiceLine",
    "InvoicePdf",
    "JournalEntry",
    "LedgerCheckpoint",
    "LedgerHead",
    "PostedDay",
    "PrepaidMark",
    "Price",
    "PriceBook",
    "PriceBookTerm",
    "StoredPdf",
    "TaxKind",
    "TaxTreatment",
    "UsagePosting",
]
