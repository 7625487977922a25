"""Forms of splits and fallbacks: their display values, and the parsed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.adapters.aliases import MAX_ARMS, MAX_FALLBACKS
from controlplane.adapters.models import Adapter, Alias
from controlplane.adapters.selectors import adapter_callable_names
from controlplane.catalog.selectors import base_model_list
from controlplane.console.amounts import whole
from controlplane.console.seen import seen_tag
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant

_PERCENT: Final = "percent-"
_NAMED: Final = re.compile(r"percent-([0-9]{1,8})", re.ASCII)
_ALL: Final = 100
_SUGGESTED: Final = 100


@dataclass(frozen=True, slots=True)
class Share:
    """One version's row: its share of callers in percent, as text, and whether it stays after the split."""

    number: int
    percent: str
    stays: bool


def split_shares(adapter: Adapter, alias: Alias, sent: Mapping[str, str] | None = None) -> list[Share]:
    """Return rows for the alias's versions and the newest callable ones, MAX_ARMS if that many exist.

    Args:
        sent: a refused form, whose values are kept.
    """
    now = {arm.version.number: arm.percent for arm in alias.live_arms} or {alias.version.number: 100}
    # The alias's own versions come first, so that they stay on the form however many newer ones exist.
    offered = [*now, *(item.number for item in adapter.live_versions if item.is_callable)]
    numbers = {*offered[: MAX_ARMS + len(now)]}
    if sent is None:
        shares = [Share(n, str(now.get(n, "")), n == alias.version.number) for n in numbers]
    else:
        # Newer versions may exist since the form was opened, so its own versions are kept on it.
        texts = {int(found[1]): text for name, text in sent.items() if (found := _NAMED.fullmatch(name))}
        shares = [Share(n, texts.get(n, ""), sent.get("stays") == str(n)) for n in numbers | texts.keys()]
    return sorted(shares, key=lambda share: share.number, reverse=True)


def split_shown(alias: Alias) -> dict[str, str]:
    """Return the state that a split replaces."""
    stays = f"v{alias.version.number}"
    arms = {f"v{arm.version.number}": f"{arm.percent} %" for arm in alias.live_arms}
    return {**arms, "stays": stays} if arms else {stays: "100 %"}


def split_arms(sent: Mapping[str, str]) -> list[tuple[int, int]]:
    """Parse (version, percent) of each share, the staying version first; one version with 100 ends the split.

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
        return list(found.items())  # one version has all callers, so none needs to stay
    stays = sent.get("stays", "")
    first = _whole(stays) if stays else next(iter(found))
    if first not in found:
        text = _("the default version must have a share: version %(number)s has none")
        raise InvalidInputError(text % {"number": first}, field="arms")
    return [(first, found.pop(first)), *found.items()]


def fallback_shown(target: Adapter | Alias) -> dict[str, str]:
    """Return the state that a list of fallbacks replaces."""
    return {"models": ", ".join(target.fallback)}


def fallback_context(tenant: Tenant, target: Adapter | Alias) -> dict[str, Any]:
    """Return the form's context: the models in order, some suggestions, the state's tag."""
    names = adapter_callable_names(tenant=tenant)[:_SUGGESTED]
    return {
        "models": target.fallback,
        "slots": range(MAX_FALLBACKS),
        "suggested": [*(base.name for base in base_model_list()), *names],
        "seen": seen_tag(fallback_shown(target)),
        "error": "",
    }


def _whole(text: str) -> int:
    if (number := whole(text)) is None:
        raise InvalidInputError(_("percentages are whole numbers from 1 to 100"), field="arms")
    return number
