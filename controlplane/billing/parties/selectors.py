"""Reads the seller's and tenants' billing details."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

from django.db.models import QuerySet

from controlplane.billing.models import BillingParty, CreditNote, Invoice
from controlplane.errors import ConflictError
from controlplane.platform.row_lookup import row_get

SELLER: Final = ""
"""Tenant id that stands for the operator."""
SELLER_FIELDS: Final = ("legal_name", "address", "contact", "tax_number", "registration", "payment_text")
BUYER_FIELDS: Final = ("legal_name", "address", "contact", "reference")
_COLUMNS: Final = {
    "seller_name": "legal_name",
    "seller_address": "address",
    "seller_tax_number": "tax_number",
    "buyer_name": "legal_name",
    "buyer_address": "address",
    "buyer_reference": "reference",
}
PARTY_COLUMNS: Final = tuple(_COLUMNS)
"""Columns of files that name the seller and the buyer."""


def fields_of(tenant: str) -> tuple[str, ...]:
    """Return the names of the detail fields of the seller, or of a tenant."""
    return SELLER_FIELDS if tenant == SELLER else BUYER_FIELDS


def party_list(*, tenant: str) -> QuerySet[BillingParty]:
    """Details of a tenant, or of the seller, newest first."""
    return BillingParty.objects.filter(tenant=tenant).order_by("-starts")


def party_get(*, tenant: str, party_id: int) -> BillingParty:
    """Return one set of details by id. Raises NotFoundError."""
    rows = party_list(tenant=tenant).filter(pk=party_id)
    return row_get(rows, f"{tenant or 'the seller'} has no billing details {party_id}")


def party_on(*, tenant: str, day: dt.date) -> BillingParty | None:
    """Return the details in force on a UTC day; None before the first."""
    return party_list(tenant=tenant).filter(starts__lte=day).first()


def parties_missing(*, tenant: str, day: dt.date) -> list[str]:
    """Return which of "seller" and "buyer" have no details on a UTC day."""
    found = (("seller", SELLER), ("buyer", tenant))
    return [name for name, party in found if party_on(tenant=party, day=day) is None]


def parties_named(document: Invoice | CreditNote, *, day: dt.date) -> None:
    """Copy the seller's and the buyer's details of a UTC day onto an unsaved document."""
    document.seller = _details_copy(party_on(tenant=SELLER, day=day))
    document.buyer = _details_copy(party_on(tenant=document.tenant, day=day))


def parties_check(document: Invoice | CreditNote) -> None:
    """Raise ConflictError if a document that is about to become final names no seller or no buyer."""
    if document.seller is None:
        raise ConflictError("no seller details are set: set them first (page Seller, POST /seller)")
    if document.buyer is None:
        raise ConflictError(
            f"{document.tenant} has no billing details: set them first (the tenant's page, POST "
            f"/tenants/{document.tenant}/billing-details)"
        )


def flat_parties(document: Invoice | CreditNote) -> dict[str, str]:
    """Return the `PARTY_COLUMNS` of a file; empty where no details were stated."""
    found: dict[str, Mapping[str, str]] = {"seller": document.seller or {}, "buyer": document.buyer or {}}
    return {column: found[column.partition("_")[0]].get(field, "") for column, field in _COLUMNS.items()}


def _details_copy(party: BillingParty | None) -> dict[str, str] | None:
    return None if party is None else {name: getattr(party, name) for name in fields_of(party.tenant)}
