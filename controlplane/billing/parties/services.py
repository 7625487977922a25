"""Sets the seller's and tenants' billing details. Finalized documents keep their copies."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from django.db import transaction
from django.utils import timezone

from controlplane.billing.models import BillingParty
from controlplane.billing.parties.selectors import fields_of
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.platform.lengths import checked_text


@transaction.atomic
def party_set(*, tenant: str, values: Mapping[str, str], starts: dt.date | None = None) -> BillingParty:
    """Puts details in force from `starts` (a UTC day; None: today), replacing those of the same day.

    An invoice copies the details of its finalization day, a credit note those of its issue day.

    Args:
        tenant: its id, or "" for the operator, who sells.
        values: texts by field name, of `fields_of(tenant)`; missing ones become empty.

    Raises:
        InvalidInputError: no name or address, a field that the party does not have, or a text too long.
    """
    checked = _checked(tenant, values)
    starts = starts or timezone.now().date()
    # A row lock cannot cover a missing row: the unique constraint lets one of two writers create it.
    row, made = BillingParty.objects.get_or_create(tenant=tenant, starts=starts, defaults=checked)
    before = None if made else locked_snapshot(row)
    if not made:
        for name, text in checked.items():
            setattr(row, name, text)
        row.save()
    audit_record(tenant=tenant, action="billing_details.set", target=row, before=before, after=snapshot(row))
    return row


@transaction.atomic
def party_remove(*, party: BillingParty) -> None:
    """Deletes planned details; the earlier ones stay in force.

    Raises ConflictError: they are or were in force.
    """
    if party.starts <= timezone.now().date():
        raise ConflictError(
            f"these details have applied since {party.starts} and cannot be removed: add new ones from "
            "today or later"
        )
    audit_record(tenant=party.tenant, action="billing_details.remove", target=party, before=snapshot(party))
    party.delete()


def _checked(tenant: str, values: Mapping[str, str]) -> dict[str, str]:
    known = fields_of(tenant)
    if unknown := sorted(set(values) - set(known)):
        raise InvalidInputError(
            f"unknown field {unknown[0][:64]!r}: fields are {', '.join(known)}", field=unknown[0][:64]
        )
    lengths = {field.name: field.max_length or 0 for field in BillingParty._meta.concrete_fields}
    checked = {
        name: checked_text(_lines(values.get(name, "")), field=name, most=lengths[name]) for name in known
    }
    for name in ("legal_name", "address"):
        if not checked[name]:
            raise InvalidInputError(f"{name} is required on documents", field=name)
    return checked


def _lines(text: str) -> str:
    """Strip each line, and end lines with a newline whatever the form sent."""
    return "\n".join(line.strip() for line in text.strip().splitlines())
