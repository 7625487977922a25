"""Which copies read a request's images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from contracts.base_routes import BaseRoute, CopyRoute
from contracts.capabilities.capability import BaseNeeds
from contracts.capabilities.engines import image_offers
from gateway.errors import ImagesNotServed
from gateway.routing.names import Resolution


def reading_images(resolution: Resolution, count: int) -> Resolution:
    """Return the resolution with those copies alone that may read `count` images, perhaps none."""
    route = resolution.route
    able = replace(route, copies=_able(route, route.copies, count), absent=_able(route, route.absent, count))
    if not able.copies and not able.absent:
        able = replace(able, hold_seconds=0)
    return replace(resolution, route=able)


def refuses_images(resolution: Resolution, count: int) -> bool:
    """Return True if its base model has copies or deployments, and none of them reads `count` images."""
    route = resolution.route
    if route.image_tokens is not None and not route.image_tokens.reads_images:
        return True
    known = (*route.copies, *route.absent)
    return bool(known) and not _able(route, known, count)


def images_not_served(resolution: Resolution, count: int) -> ImagesNotServed:
    """Return the error that says what is missing, and what would serve the `count` images."""
    route, base = resolution.route, resolution.base
    if route.image_tokens is not None and not route.image_tokens.reads_images:
        text = f"The base model {base!r} has no vision part, so it reads text alone. "
        return ImagesNotServed(text + "Send no images, or call a vision-language model.", param="messages")
    known = (*route.copies, *route.absent)
    if limits := [copy.max_images for copy in known if copy.images is not False and copy.max_images]:
        text = f"The copies of {base!r} read at most {max(limits)} images of one request, it has {count}. "
        return ImagesNotServed(
            text + "Send fewer, or ask your operator for a higher limit.", param="messages"
        )
    engines = dict.fromkeys(copy.engine or "a copy" for copy in known)
    reasons = "; ".join(f"{engine} reads text alone" for engine in engines)
    offers = image_offers(BaseNeeds(route.architecture, route.quantization)) if route.architecture else []
    served = f"What would serve it: {', '.join(offers)}. " if offers else ""
    remedy = f"{served}Send no images, or ask your operator for a copy that reads them."
    return ImagesNotServed(f"No copy of {base!r} reads images: {reasons}. {remedy}", param="messages")


def _able(route: BaseRoute, copies: Iterable[CopyRoute], count: int) -> tuple[CopyRoute, ...]:
    if route.image_tokens is not None and not route.image_tokens.reads_images:
        return ()
    return tuple(copy for copy in copies if copy.may_read_images(count))
