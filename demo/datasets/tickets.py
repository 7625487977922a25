"""Support tickets with their triage, on which the `support-triage` adapter is trained and scored."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ticket:
    """A customer's message and its correct triage."""

    text: str
    category: str
    priority: str
    team: str

    @property
    def triage(self) -> str:
        """The adapter's expected answer."""
        return f"Category: {self.category}\nPriority: {self.priority}\nTeam: {self.team}"


_ROUTES: Final = {
    "billing": ("normal", "finance"),
    "login": ("high", "accounts"),
    "delivery": ("normal", "logistics"),
    "outage": ("urgent", "engineering"),
    "cancellation": ("low", "retention"),
}
CATEGORIES: Final = tuple(_ROUTES)

_MESSAGES: Final = {
    "billing": (
        "I was charged twice for my {}.",
        "My invoice for the {} shows the wrong amount.",
        "Why did the price of my {} go up on this month's bill?",
        "Please refund the payment for my {}.",
        "My credit card was billed for a {} that I did not buy.",
        "I need a receipt for the {} I paid for.",
    ),
    "login": (
        "I cannot log in to my {} account.",
        "I forgot the password of my {} account.",
        "The code to sign in to my {} never arrives.",
        "My {} account is locked after three attempts.",
        "The password reset mail for my {} does not come.",
        "I can't sign in to the {} any more.",
    ),
    "delivery": (
        "My {} has not arrived yet.",
        "The parcel with my {} is late.",
        "Where is the {} I ordered?",
        "The courier left my {} at the wrong address.",
        "The tracking page says my {} was delivered, but it wasn't.",
        "When will you ship my {}?",
    ),
    "outage": (
        "The {} service is down for our whole office.",
        "Nothing works: the {} shows error 500.",
        "Your {} has been offline since this morning.",
        "The {} crashes as soon as it starts.",
        "All our users see a blank page in the {}.",
        "The {} servers do not respond.",
    ),
    "cancellation": (
        "I want to cancel my {}.",
        "Please close my {} subscription.",
        "How do I end my {} plan?",
        "I no longer need the {}, please stop the subscription.",
        "Cancel the renewal of my {} today.",
        "Please terminate my contract for the {}.",
    ),
}
_HELD_OUT_MESSAGES: Final = {
    "billing": (
        "There are two charges for one {} on my card.",
        "The invoice of the {} is wrong, please refund me.",
    ),
    "login": ("My password for the {} is not accepted when I log in.", "I am locked out of my {} account."),
    "delivery": ("The {} I ordered was not delivered.", "My parcel is late, where is the {}?"),
    "outage": ("The {} is down and shows an error to everyone.", "Since noon the {} servers are offline."),
    "cancellation": ("I would like to cancel the {} subscription.", "Please end my {} contract."),
}
_PRODUCTS: Final = (
    "phone",
    "headset",
    "video plan",
    "music app",
    "laptop",
    "cloud storage",
    "router",
    "coffee machine",
    "game console",
    "newsletter",
    "printer",
    "fitness tracker",
    "web shop",
    "camera",
)
_HELD_OUT_PRODUCTS: Final = ("tablet", "calendar app", "e-bike", "backup service")


def training_tickets(count: int, *, seed: int = 0) -> list[Ticket]:
    """Return `count` distinct tickets, equal for equal seeds; at most 420."""
    return random.Random(seed).sample(_fill(_MESSAGES, _PRODUCTS), count)


def held_out_tickets() -> list[Ticket]:
    """Return 40 tickets with wordings and products that are not in the training data."""
    return _fill(_HELD_OUT_MESSAGES, _HELD_OUT_PRODUCTS)


def _fill(messages: Mapping[str, tuple[str, ...]], products: tuple[str, ...]) -> list[Ticket]:
    return [
        Ticket(message.format(product), category, *_ROUTES[category])
        for category, wordings in messages.items()
        for message in wordings
        for product in products
    ]
