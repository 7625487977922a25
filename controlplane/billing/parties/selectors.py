"""Reads of who sells and who is billed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

from django.db.models import QuerySet

from controlplane.billing.models import BillingParty, CreditNote, Invoice
from controlplane.errors import ConflictError, NotFoundError

SELLER: Final = ""
"""The operator's place among tenants' ids."""
SELLER_FIELDS: Final = ("legal_name", "address", "contact", "tax_number", "registration", "payment_text")
BUYER_FIELDS: Final = ("legal_name", "address", "contact", "reference")
_COLUMNS: Final = {
    "seller_name": "legal_name", "seller_address": "address", "seller_tax_number": "tax_number",
    "buyer_name": "legal_name", "buyer_address": "address", "buyer_reference": "reference",
}  # fmt: skip
PARTY_COLUMNS: Final = tuple(_COLUMNS)
"""Columns in which files name both."""


def fields_of(tenant: str) -> tuple[str, ...]:
    """What is stated of the seller, or of a tenant."""
    return SELLER_FIELDS if tenant == SELLER else BUYER_FIELDS


def party_list(*, tenant: str) -> QuerySet[BillingParty]:
    """A tenant's, or the seller's, newest first."""
    return BillingParty.objects.filter(tenant=tenant).order_by("-starts")


def party_get(*, tenant: str, party_id: int) -> BillingParty:
    """Raises NotFoundError."""
    found = party_list(tenant=tenant).filter(pk=party_id).first()
    if found is None:
        raise NotFoundError(f"there are no billing details {party_id} of {tenant or 'the seller'}")
    return found


def party_on(*, tenant: str, day: dt.date) -> BillingParty | None:
    """The one in force on a UTC day; None before the first."""
    return party_list(tenant=tenant).filter(starts__lte=day).first()


def parties_missing(*, tenant: str, day: dt.date) -> list[str]:
    """Return those of "seller" and "buyer" that a document of a UTC day could not name."""
    found = (("seller", SELLER), ("buyer", tenant))
    return [name for name, party in found if party_on(tenant=party, day=day) is None]


def parties_named(document: Invoice | CreditNote, *, day: dt.date) -> None:
    """Writes on a document, unsaved, who sells and who is billed on a UTC day."""
    document.seller = _said(party_on(tenant=SELLER, day=day))
    document.buyer = _said(party_on(tenant=document.tenant, day=day))


def parties_check(document: Invoice | CreditNote) -> None:
    """Raise ConflictError if a document that is about to become final names no seller or no buyer."""
    if document.seller is None:
        raise ConflictError("no seller is stated: state who sells (page Seller, POST /seller) first")
    if document.buyer is None:
        raise ConflictError(
            f"no billing details of {document.tenant} are stated: state them (the tenant's page,"
            f" POST /tenants/{document.tenant}/billing-details) first"
        )


def flat_parties(document: Invoice | CreditNote) -> dict[str, str]:
    """`PARTY_COLUMNS` of a file; empty where nothing was stated."""
    found: dict[str, Mapping[str, str]] = {"seller": document.seller or {}, "buyer": document.buyer or {}}
    return {column: found[column.partition("_")[0]].get(field, "") for column, field in _COLUMNS.items()}


def _said(party: BillingParty | None) -> dict[str, str] | None:
    return None if party is None else {name: getattr(party, name) for name in fields_of(party.tenant)}
