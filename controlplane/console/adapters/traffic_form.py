"""Forms of splits and fallbacks: what they show, and the values that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.adapters.aliases import MAX_ARMS, MAX_FALLBACKS
from controlplane.adapters.models import Adapter, Alias
from controlplane.adapters.selectors import adapter_callable
from controlplane.catalog.selectors import base_model_list
from controlplane.console.seen import seen_tag
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant

_PERCENT: Final = "percent-"
_NAMED: Final = re.compile(r"percent-([0-9]{1,8})", re.ASCII)
_ALL: Final = 100
_SUGGESTED: Final = 100


@dataclass(frozen=True, slots=True)
class Share:
    """One version's line of the form: its callers' percentage, as text, and whether it stays at the end."""

    number: int
    percent: str
    stays: bool


def split_shares(adapter: Adapter, alias: Alias, sent: Mapping[str, str] | None = None) -> list[Share]:
    """The alias's versions and the newest that may be called, MAX_ARMS at least of what there is.

    Args:
        sent: a form that was refused, whose entries stay.
    """
    now = {arm.version.number: arm.percent for arm in alias.live_arms} or {alias.version.number: 100}
    # The alias's own first: a version that it means stays on the form, however many came after it.
    offered = [*now, *(item.number for item in adapter.live_versions if item.is_callable)]
    numbers = {*offered[: MAX_ARMS + len(now)]}
    if sent is None:
        shares = [Share(n, str(now.get(n, "")), n == alias.version.number) for n in numbers]
    else:
        # Newer versions may have come since the form was opened: those that it had stay on it.
        texts = {int(found[1]): text for name, text in sent.items() if (found := _NAMED.fullmatch(name))}
        shares = [Share(n, texts.get(n, ""), sent.get("stays") == str(n)) for n in numbers | texts.keys()]
    return sorted(shares, key=lambda share: share.number, reverse=True)


def split_shown(alias: Alias) -> dict[str, str]:
    """What a split replaces."""
    stays = f"v{alias.version.number}"
    arms = {f"v{arm.version.number}": f"{arm.percent} %" for arm in alias.live_arms}
    return {**arms, "stays": stays} if arms else {stays: "100 %"}


def split_arms(sent: Mapping[str, str]) -> list[tuple[int, int]]:
    """(version, percent) of what has a share, first the version that stays; alone with 100 where one has all.

    Raises InvalidInputError.
    """
    found = {
        _whole(name.removeprefix(_PERCENT)): _whole(text.strip().removesuffix("%").strip())
        for name, text in sent.items()
        if name.startswith(_PERCENT) and text.strip() not in ("", "0")
    }
    if not found:
        raise InvalidInputError(_("give at least one version a percentage"), field="arms")
    if list(found.values()) == [_ALL]:
        return list(found.items())  # it is no split: there is nothing to stay of
    stays = sent.get("stays", "")
    first = _whole(stays) if stays else next(iter(found))
    if first not in found:
        text = _("the version that stays must have a share: version %(number)s has none")
        raise InvalidInputError(text % {"number": first}, field="arms")
    return [(first, found.pop(first)), *found.items()]


def fallback_shown(target: Adapter | Alias) -> dict[str, str]:
    """What a list of fallbacks replaces."""
    return {"models": ", ".join(target.fallback)}


def fallback_context(tenant: Tenant, target: Adapter | Alias) -> dict[str, Any]:
    """What the form needs: the models in order, some that may be named, the state's tag."""
    names = adapter_callable(tenant=tenant).values_list("name", flat=True)[:_SUGGESTED]
    return {
        "models": target.fallback,
        "slots": range(MAX_FALLBACKS),
        "suggested": [*(base.name for base in base_model_list()), *names],
        "seen": seen_tag(fallback_shown(target)),
        "error": "",
    }


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise InvalidInputError(_("percentages are whole numbers from 1 to 100"), field="arms")
    return int(text)
