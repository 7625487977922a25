"""Sets tenants' tax treatments. Finalized invoices keep their copies."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Final

from django.db import transaction

from controlplane.billing.ledger_head import head_lock
from controlplane.billing.models import Invoice, LedgerHead, TaxKind, TaxTreatment
from controlplane.billing.months import month_after, month_end
from controlplane.billing.taxes.selectors import treatment_get, treatment_list
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.queue import enqueue
from controlplane.tenants.limits.services import PUBLISH_BUDGETS
from controlplane.tenants.models import Tenant

_REVERSE_CHARGE: Final = "Reverse charge: the recipient is liable for the tax."
_DECIMALS: Final = Decimal("0.0001")


@transaction.atomic
def treatment_set(
    *,
    tenant: Tenant,
    starts: dt.date,
    kind: str,
    label: str,
    rate_percent: Decimal = Decimal(0),
    tax_number: str = "",
    text: str = "",
) -> TaxTreatment:
    """Puts a treatment in force from `starts` (a UTC day) until a later one.

    An invoice uses the treatment of its month's last day, when its supply ends.

    Args:
        rate_percent: at most four decimals; 0 unless the kind is taxed.
        text: required wording on documents; needed if exempt, with a default under reverse charge.

    Raises:
        InvalidInputError: the rate, label or text do not fit the kind.
        ConflictError: another one starts on that day, or the month of that day is invoiced.
    """
    values = _checked(kind, label, rate_percent, tax_number, text)
    head = head_lock(tenant=tenant.pk)
    if _is_closed(head, starts):
        assert head.closed_through is not None
        raise ConflictError(
            f"{tenant.pk} is invoiced through {head.closed_through:%Y-%m}: choose a start of "
            f"{month_after(head.closed_through)} or later"
        )
    if TaxTreatment.objects.filter(tenant=tenant.pk, starts=starts).exists():
        raise ConflictError(
            f"{tenant.pk} already has a tax treatment from {starts}: remove it first, or choose another day"
        )
    made = TaxTreatment.objects.create(tenant=tenant.pk, starts=starts, **values)
    enqueue(PUBLISH_BUDGETS, tenant=tenant.pk)
    audit_record(tenant=tenant.pk, action="tax.set", target=made, after=snapshot(made))
    return made


@transaction.atomic
def treatment_remove(*, treatment: TaxTreatment) -> None:
    """Deletes a treatment that no invoice used; the one before it stays in force.

    Raises:
        ConflictError: a month on whose last day it is in force is invoiced.
        NotFoundError: it was removed concurrently.
    """
    head = head_lock(tenant=treatment.tenant)
    treatment = treatment_get(treatment_id=treatment.pk, tenant=treatment.tenant)
    if _is_closed(head, treatment.starts):
        raise ConflictError("finalized invoices use it: add another tax treatment from a later day")
    audit_record(tenant=treatment.tenant, action="tax.remove", target=treatment, before=snapshot(treatment))
    treatment.delete()
    enqueue(PUBLISH_BUDGETS, tenant=treatment.tenant)


def treatment_copy(*, invoice: Invoice) -> Decimal | None:
    """Copy the treatment of its month's last day onto an unsaved invoice; return the rate, or None."""
    found = treatment_list(tenant=invoice.tenant).filter(starts__lte=month_end(invoice.month)).first()
    invoice.tax_kind = found.kind if found else ""
    invoice.tax_label = found.label if found else ""
    invoice.tax_rate_percent = found.rate_percent if found else Decimal(0)
    invoice.tax_number = found.tax_number if found else ""
    invoice.tax_text = found.text if found else ""
    return found.rate_percent if found else None


def _checked(
    kind: str, label: str, rate_percent: Decimal, tax_number: str, text: str
) -> dict[str, str | Decimal]:
    if kind not in TaxKind.values:
        raise InvalidInputError(f"kind must be one of {', '.join(TaxKind.values)}", field="kind")
    if not label.strip():
        raise InvalidInputError(
            "label is required: the name of the tax on documents, such as VAT", field="label"
        )
    if not rate_percent.is_finite() or not 0 <= rate_percent <= 100:
        raise InvalidInputError("rate_percent must be from 0 to 100", field="rate_percent")
    if rate_percent != rate_percent.quantize(_DECIMALS):
        raise InvalidInputError("rate_percent must have at most four decimals", field="rate_percent")
    if rate_percent and kind != TaxKind.TAXED:
        raise InvalidInputError(f"{kind} adds no tax: omit rate_percent", field="rate_percent")
    if kind == TaxKind.REVERSE_CHARGE:
        if not tax_number.strip():
            raise InvalidInputError("reverse charge needs the customer's tax_number", field="tax_number")
        text = text.strip() or _REVERSE_CHARGE
    if kind == TaxKind.EXEMPT and not text.strip():
        raise InvalidInputError(
            "text is required: the legal basis of the exemption, printed on documents", field="text"
        )
    return {
        "kind": kind,
        "label": label.strip(),
        "rate_percent": rate_percent,
        "tax_number": tax_number.strip(),
        "text": text.strip(),
    }


def _is_closed(head: LedgerHead, day: dt.date) -> bool:
    return head.closed_through is not None and day <= month_end(head.closed_through)
