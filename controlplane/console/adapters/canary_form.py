"""The adapter page's aliases, each with its undo and, given a second version, a canary slider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from controlplane.adapters.models import Adapter, Alias, AliasChange
from controlplane.adapters.selectors import alias_changes_newest
from controlplane.canaries.selectors import rollout_active_aliases
from controlplane.console.adapters.traffic_form import split_shown
from controlplane.console.amounts import whole
from controlplane.console.seen import seen_tag
from controlplane.errors import InvalidInputError

_OFFERED: Final = 20
"""Newest versions that a canary can use; the alias's own page has older ones."""
_ALL: Final = 100


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused slider form: its alias, values and error, and the state tag for the next try."""

    alias: str
    sent: Mapping[str, str]
    error: str
    seen: str


@dataclass(frozen=True, slots=True)
class Canary:
    """State of the slider: `version` gets `percent` of the callers, as text; `stable` gets the others.

    Attributes:
        versions: selectable versions, newest first.
        decides: True if an automatic rollout is running, which a manual share ends.
    """

    stable: int
    versions: tuple[int, ...]
    version: int
    percent: str
    seen: str
    decides: bool

    @property
    def slid(self) -> int:
        """Position of the slider; 0 if the text is no percentage."""
        return int(self.percent) if _is_percent(self.percent) else 0

    @property
    def rest(self) -> int:
        return _ALL - self.slid


@dataclass(frozen=True, slots=True)
class AliasRow:
    """An alias of the page.

    Attributes:
        newest: the change that can be reverted.
        canary: None if the adapter has no second version, or the alias is split among more than two.
        error: why a form was refused.
    """

    alias: Alias
    newest: AliasChange | None
    canary: Canary | None
    error: str


def alias_rows_of(adapter: Adapter, refused: Refused | None = None) -> list[AliasRow]:
    """Return a row for each of the adapter's aliases, by name. Two queries."""
    if not adapter.live_aliases:
        return []
    changes = alias_changes_newest(adapter=adapter)
    deciding = rollout_active_aliases(adapter=adapter)
    rows = []
    for alias in adapter.live_aliases:
        own = refused if refused and refused.alias == alias.name else None
        newest = changes.get(alias.name)
        back = newest if newest and newest.before else None
        canary = _canary(adapter, alias, alias.name in deciding, own)
        rows.append(AliasRow(alias, back, canary, own.error if own else ""))
    return rows


def canary_arms(sent: Mapping[str, str], *, stable: int) -> list[tuple[int, int]]:
    """Parse (version, percent) of each arm, the stable version first; with 0 or 100 there is only one arm.

    Raises InvalidInputError.
    """
    version, percent = sent.get("version", ""), sent.get("percent", "").strip().removesuffix("%").strip()
    number = whole(version)
    if number is None or number == stable:
        text = _("choose a version other than v%(number)s, which the alias points to now")
        raise InvalidInputError(text % {"number": stable}, field="version")
    if not _is_percent(percent):
        raise InvalidInputError(_("the share is a whole percentage from 0 to 100"), field="percent")
    arms = [(stable, _ALL - int(percent)), (number, int(percent))]
    return [arm for arm in arms if arm[1]]


def _canary(adapter: Adapter, alias: Alias, decides: bool, refused: Refused | None) -> Canary | None:
    stable = alias.version.number
    now = {arm.version.number: arm.percent for arm in alias.live_arms if arm.version.number != stable}
    others = [item.number for item in adapter.live_versions if item.is_callable and item.number != stable]
    versions = tuple(dict.fromkeys([*now, *others[:_OFFERED]]))
    if len(now) > 1 or not versions:
        return None
    version, percent = versions[0], str(now.get(versions[0], 0))
    seen = seen_tag(split_shown(alias))
    if refused is not None:
        sent = refused.sent.get("version", "")
        version = next((number for number in versions if str(number) == sent), version)
        percent, seen = refused.sent.get("percent", ""), refused.seen
    return Canary(stable, versions, version, percent, seen, decides)


def _is_percent(text: str) -> bool:
    return (share := whole(text)) is not None and share <= _ALL
