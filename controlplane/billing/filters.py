"""Query filters of price books, journal entries, invoices and credit notes."""

from __future__ import annotations

import django_filters as filters


class PriceBookFilter(filters.FilterSet):  # type: ignore[misc]
    currency = filters.CharFilter("currency")
    is_default = filters.BooleanFilter("is_default")


class EntryFilter(filters.FilterSet):  # type: ignore[misc]
    kind = filters.CharFilter("kind")
    day = filters.DateFilter("day", help_text="UTC day that the entry applies to.")


class InvoiceFilter(filters.FilterSet):  # type: ignore[misc]
    status = filters.CharFilter("status", help_text="draft or finalized.")
    month = filters.DateFilter("month", help_text="First day of the UTC month.")


class FleetInvoiceFilter(InvoiceFilter):
    tenant = filters.CharFilter("tenant")


class CreditNoteFilter(filters.FilterSet):  # type: ignore[misc]
    invoice = filters.NumberFilter("invoice_id", help_text="Id of the invoice.")
    reason = filters.CharFilter("reason")


class FleetCreditNoteFilter(CreditNoteFilter):
    tenant = filters.CharFilter("tenant")
