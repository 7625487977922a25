"""The answer to a request for an adapter that no copy of its base model can serve."""

from __future__ import annotations

from typing import Final

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute
from contracts.capabilities.capability import BaseNeeds, known_traits
from contracts.capabilities.engines import adapter_offers
from contracts.capabilities.traits import AdapterNeeds
from gateway.errors import AdapterNotServed
from gateway.routing.names import Resolution

_MOST_REASONS: Final = 4


def not_served(resolution: Resolution) -> AdapterNotServed:
    """Return the error that says what each kind of copy lacks, and what would serve the adapter."""
    adapter = resolution.adapter
    if adapter is None:
        raise ValueError("every copy can serve the base model")
    return AdapterNotServed(
        f"No copy of {resolution.base!r} can serve {resolution.model!r}: "
        f"{_reasons(resolution.route, adapter)}. {_remedy(resolution.route, adapter)}",
        param="model",
    )


def read_engines() -> None:
    """Read the table of engines, which takes 0.15 s, so that the first refusal does not."""
    adapter_offers(BaseNeeds(""), AdapterNeeds(1))


def _reasons(route: BaseRoute, adapter: AdapterRef) -> str:
    """Return what copies lack, each reason once."""
    reasons: dict[str, None] = {}
    for copy in (*route.copies, *route.absent):
        if not copy.merged:
            reasons[f"{copy.engine or 'a copy'} does not serve {copy.lacks(adapter)}"] = None
    return "; ".join(list(reasons)[:_MOST_REASONS])


def _remedy(route: BaseRoute, adapter: AdapterRef) -> str:
    traits = known_traits(adapter.traits)
    offers: list[str] = []
    if route.architecture and traits is not None:
        base = BaseNeeds(route.architecture, route.quantization)
        offers = adapter_offers(base, AdapterNeeds(adapter.rank, traits))
    if not offers:
        return "Use another version of the adapter, or ask your operator."
    return f"What would serve it: {', '.join(offers)}. Ask your operator for such a copy."
