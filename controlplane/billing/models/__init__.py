"""Rows of billing: prices, the ledger, invoices."""

from __future__ import annotations

from controlplane.billing.models.budgets import BudgetNotice
from controlplane.billing.models.invoices import Invoice, InvoiceLine, InvoicePdf
from controlplane.billing.models.ledger import (
    Account,
    CreditGrant,
    EntryKind,
    JournalEntry,
    LedgerHead,
    PostedDay,
    UsagePosting,
)
from controlplane.billing.models.prices import HostingPrice, Price, PriceBook, PriceBookTerm

__all__ = [
    "Account",
    "BudgetNotice",
    "CreditGrant",
    "EntryKind",
    "HostingPrice",
    "Invoice",
    "InvoiceLine",
    "InvoicePdf",
    "JournalEntry",
    "LedgerHead",
    "PostedDay",
    "Price",
    "PriceBook",
    "PriceBookTerm",
    "UsagePosting",
]
