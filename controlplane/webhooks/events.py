"""Types of webhook events. A type is listed once the code emits it."""

from __future__ import annotations

from typing import Final

TEST: Final = "webhook.test"
DISABLED: Final = "webhook.disabled"

EVENTS: Final = {
    "adapter.version.ready": "A version passed validation and can be called.",
    "adapter.version.refused": "A version failed validation; `reason` tells why.",
    "adapter.alias.changed": "An alias was made, moved, split, rolled back or removed (`version` is null).",
    "adapter.deleted": "An adapter was deleted with its versions and aliases.",
    "adapter.restored": "A deleted adapter came back as it was.",
    "deployment.copy.added": "A copy of a base model joined; `copies` is how many there are now.",
    "deployment.copy.removed": "A copy of a base model left; `copies` is how many there are now.",
    "budget.alert": "Spending reached the budget's alert level, once a period.",
    "budget.threshold": "Spending reached 50, 80 or 100 `percent` of a budget, each once a period.",
    "prepaid.threshold": "80 or 100 `percent` of what was there after a top-up are used, each once.",
    "invoice.drafted": "A month's invoice was drafted; it follows late usage until it is finalized.",
    "invoice.finalized": "An invoice was numbered and is never changed again.",
    "credit_note.issued": "A credit note took back part of an invoice, or all of it; it never changes.",
    "credit_note.voided": "A credit note was cancelled by another one, which this is; it never changes.",
    DISABLED: "Another endpoint was disabled after failing for long.",
    TEST: "Somebody asked for a test; sent to that endpoint alone, whatever it chose.",
}
"""Event type -> description."""

CHOOSABLE: Final = tuple(name for name in EVENTS if name != TEST)
