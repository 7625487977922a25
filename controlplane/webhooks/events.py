"""Types of webhook events. A type is listed once the code emits it."""

from __future__ import annotations

from typing import Final

TEST: Final = "webhook.test"
DISABLED: Final = "webhook.disabled"

EVENTS: Final = {
    "adapter.version.ready": "A version passed validation and can be called.",
    "adapter.version.refused": "A version failed validation; see `reason`.",
    "adapter.alias.changed": "An alias was created, moved, split, rolled back or deleted (`version` is "
    "null).",
    "adapter.version.quarantined": "Engines died while they ran a version; its requests are refused until "
    "`until`.",
    "adapter.version.released": "The operator released a quarantined version; it can be called again.",
    "adapter.deleted": "An adapter was deleted with its versions and aliases.",
    "adapter.restored": "A deleted adapter was restored.",
    "deployment.copy.added": "A copy of a base model was added; `copies` is the new number.",
    "deployment.copy.removed": "A copy of a base model was removed; `copies` is the new number.",
    "budget.alert": "Spending reached the budget's alert threshold; once per period.",
    "budget.threshold": "Spending reached 50, 80 or 100 `percent` of a budget; each once per period.",
    "prepaid.threshold": "80 or 100 `percent` of the balance after a top-up are used; each once.",
    "invoice.drafted": "An invoice was drafted; late usage is added until it is finalized.",
    "invoice.finalized": "An invoice was finalized; it does not change anymore.",
    "credit_note.issued": "A credit note was issued for part of an invoice or all of it.",
    "credit_note.voided": "A credit note was voided by this credit note.",
    "alarm.state_changed": "An alarm entered a state that is listed in its `notify_on`.",
    DISABLED: "Another endpoint was disabled after failing for days.",
    TEST: "A test event; sent to one endpoint regardless of its event types.",
}
"""Event type -> description."""

CHOOSABLE: Final = tuple(name for name in EVENTS if name != TEST)
