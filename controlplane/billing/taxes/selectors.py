"""Reads of tax treatments."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.db.models import QuerySet

from controlplane.billing.models import Invoice, TaxKind, TaxTreatment
from controlplane.errors import NotFoundError


def treatment_list(*, tenant: str) -> QuerySet[TaxTreatment]:
    """The tenant's, newest first."""
    return TaxTreatment.objects.filter(tenant=tenant).order_by("-starts", "-id")


def treatment_get(*, treatment_id: int, tenant: str | None = None) -> TaxTreatment:
    """One of a tenant's, or (None) of anybody's. Raises NotFoundError."""
    rows = TaxTreatment.objects.all() if tenant is None else treatment_list(tenant=tenant)
    found = rows.filter(pk=treatment_id).first()
    if found is None:
        raise NotFoundError(f"there is no tax treatment {treatment_id}")
    return found


def treatment_on(*, tenant: str, day: dt.date) -> TaxTreatment | None:
    """The one in force on a UTC day; None before the first."""
    return treatment_list(tenant=tenant).filter(starts__lte=day).first()


def rate_on(*, tenant: str, day: dt.date) -> Decimal | None:
    """Percent that are added on a UTC day; None where there is no treatment."""
    found = treatment_on(tenant=tenant, day=day)
    return None if found is None else found.rate_percent


def rate_text(rate_percent: Decimal) -> str:
    """As people write it: `19`, `8.875`."""
    return f"{rate_percent:f}".rstrip("0").rstrip(".") if rate_percent else "0"


def tax_title(invoice: Invoice) -> str:
    """The tax's line on documents: `VAT 19%`, `VAT, reverse charge`; empty without a treatment."""
    match invoice.tax_kind:
        case TaxKind.TAXED:
            return f"{invoice.tax_label} {rate_text(invoice.tax_rate_percent)}%"
        case TaxKind.REVERSE_CHARGE:
            return f"{invoice.tax_label}, reverse charge"
        case TaxKind.EXEMPT:
            return f"{invoice.tax_label}, exempt"
        case _:
            return ""
