"""Changes of the targets of an adapter's names, each recorded in one transaction under the adapter's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db import transaction

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.adapters.models import Adapter, AdapterVersion, Alias, AliasArm, AliasChange
from controlplane.adapters.selectors import (
    alias_change_newest,
    alias_state,
    default_number,
    model_exists,
    version_get,
)
from controlplane.adapters.services import adapter_locked, adapter_publish
from controlplane.adapters.serving import serving_problem
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.platform.audit.origin import current_origin
from controlplane.platform.audit.services import audit_record
from controlplane.platform.lengths import checked_text
from controlplane.routes.services import route_lock
from controlplane.webhooks.outbox import event_emit

MAX_ARMS: Final = 10
_REASON: Final = 1000
"""Longest reason of a change."""
MAX_FALLBACKS: Final = 4


@transaction.atomic
def alias_move(*, adapter: Adapter, name: str, number: int, reason: str = "") -> Alias:
    """Point an alias at a ready version, create it if needed, and end its split; effective within a second.

    Raises:
        InvalidInputError: the alias is no slug, or reads like a version (`v3`).
        NotFoundError: there is no such version.
        ConflictError: the version is not ready.
    """
    _check_alias(name)
    adapter = adapter_locked(adapter)
    return _change(adapter, name, {"version": number, "arms": []}, "alias.move", reason)


@transaction.atomic
def alias_split(*, adapter: Adapter, name: str, arms: Sequence[tuple[int, int]], reason: str = "") -> Alias:
    """Split an alias among ready versions, and create it if needed; effective within a second.

    Args:
        arms: (version number, percent). The first is the version that stays when the split ends.

    Raises:
        InvalidInputError: fewer than 2 arms or more than MAX_ARMS, a version twice, percents that do not
            add up to 100, or the alias is no slug.
        NotFoundError: there is no such version.
        ConflictError: a version is not ready.
    """
    _check_alias(name)
    if not 2 <= len(arms) <= MAX_ARMS or len({number for number, _ in arms}) < len(arms):
        raise InvalidInputError(
            f"a split must have 2 to {MAX_ARMS} arms with different versions", field="arms"
        )
    total = sum(percent for _, percent in arms)
    if total != 100 or min(percent for _, percent in arms) < 1:
        raise InvalidInputError(
            f"percents must be whole numbers from 1 that add up to 100; these add up to {total}", field="arms"
        )
    adapter = adapter_locked(adapter)
    state = {"version": arms[0][0], "arms": [list(arm) for arm in arms]}
    return _change(adapter, name, state, "alias.split", reason)


@transaction.atomic
def alias_rollback(
    *, adapter: Adapter, name: str, to: int | None = None, newest: int | None = None, reason: str = ""
) -> Alias:
    """Restore an earlier target of an alias, even of a removed one.

    Args:
        to: number of the change whose target is restored; None reverts the newest change.
        newest: number of the newest change that the caller has seen.

    Raises:
        NotFoundError: the alias has no such change.
        ConflictError: it was changed since `newest`, there was no alias then, or a version is gone.
    """
    adapter = adapter_locked(adapter)
    last = alias_change_newest(adapter=adapter, name=name)
    if last is None:
        raise NotFoundError(f"adapter {adapter.name} has never had an alias {name!r}")
    if newest is not None and newest != last.pk:
        raise ConflictError(f"{adapter.name}@{name} was changed meanwhile: read it again, then roll back")
    state = last.before
    if to is not None:
        chosen = AliasChange.objects.filter(adapter=adapter, alias=name, pk=to).first()
        if chosen is None:
            raise NotFoundError(f"{adapter.name}@{name} has no change {to}")
        state = chosen.after
    if state is None:
        raise ConflictError(f"alias {name!r} did not exist then: delete it, or choose another change")
    return _change(adapter, name, state, "alias.rollback", reason or "rolled back")


@transaction.atomic
def alias_remove(*, alias: Alias) -> None:
    """Remove an alias; calls by it then fail as an unknown model."""
    adapter = adapter_locked(alias.adapter)
    found = Alias.objects.filter(pk=alias.pk).first()
    if found is None:
        return
    before = alias_state(found)
    Alias.objects.filter(pk=found.pk).delete()
    adapter_publish(adapter=adapter)
    _record(found, adapter, "alias.remove", before, None, "")


@transaction.atomic
def fallback_set(*, adapter: Adapter, alias: Alias | None, models: Sequence[str]) -> None:
    """Set the fallback models, in order, of the alias, or of the bare name (None).

    An empty list turns that off.

    Raises:
        InvalidInputError: more than MAX_FALLBACKS, a name twice, the name itself, or one that means nothing
            to this tenant now.
    """
    adapter = adapter_locked(adapter)
    own = adapter.name if alias is None else f"{adapter.name}@{alias.name}"
    if len(models) > MAX_FALLBACKS or len(set(models)) < len(models) or own in models:
        raise InvalidInputError(
            f"list at most {MAX_FALLBACKS} different models, without {own} itself", field="models"
        )
    for model in models:
        if not model_exists(tenant=adapter.tenant, model=model):
            raise InvalidInputError(
                f"this tenant cannot call a model {model[:200]!r}: name a base model, or one of the"
                " tenant's adapters as <adapter>, <adapter>@<alias> or <adapter>@v<n>",
                field="models",
            )
    target = adapter if alias is None else Alias.objects.filter(pk=alias.pk).first()
    if target is None:
        raise NotFoundError(f"alias {own} was removed meanwhile")
    before = {"fallback": target.fallback}
    target.fallback = list(models)
    target.save(update_fields=["fallback"])
    adapter_publish(adapter=adapter)
    after = {"fallback": target.fallback}
    audit_record(tenant=adapter.tenant_id, action="fallback.set", target=target, before=before, after=after)


@transaction.atomic
def adapter_pin(*, adapter: Adapter, number: int | None) -> Adapter:
    """Pin the bare name to version `number`; None follows the newest ready version.

    Raises:
        NotFoundError: there is no such version.
        ConflictError: the version is not ready.
    """
    adapter = adapter_locked(adapter)
    meant = default_number(adapter=adapter)
    before = {"pinned": adapter.pinned.number if adapter.pinned else None}
    adapter.pinned = None if number is None else _ready(adapter, number)
    if adapter.pinned is not None and number != meant:
        _check_served(adapter, adapter.pinned)
    adapter.pinned_automatically = False
    adapter.save(update_fields=["pinned", "pinned_automatically"])
    adapter_publish(adapter=adapter)
    default_record(adapter=adapter, before=meant)
    after = {"pinned": number}
    audit_record(tenant=adapter.tenant_id, action="adapter.pin", target=adapter, before=before, after=after)
    return adapter


@transaction.atomic
def default_rollback(*, adapter: Adapter, newest: int | None = None) -> Adapter:
    """Restore the bare name's version from before its newest change.

    Args:
        newest: number of the newest change that the caller has seen.

    Raises:
        NotFoundError: that version is gone.
        ConflictError: the bare name has meant no other version or was changed since `newest`, or that version
            is not ready.
    """
    adapter = adapter_locked(adapter)
    last = alias_change_newest(adapter=adapter, name="")
    if last is None or last.before is None:
        raise ConflictError(f"{adapter.name} has no earlier version to return to")
    if newest is not None and newest != last.pk:
        raise ConflictError(f"{adapter.name} was changed meanwhile: read it again, then roll back")
    return adapter_pin(adapter=adapter, number=last.before["version"])


def default_record(*, adapter: Adapter, before: int | None) -> None:
    """Record the bare name's change from `before`, in the transaction that made it."""
    after = default_number(adapter=adapter)
    if before is None or after is None or before == after:
        return
    actor = current_origin().who()
    AliasChange.objects.create(
        adapter=adapter,
        alias="",
        before={"version": before, "arms": []},
        after={"version": after, "arms": []},
        by=(actor.name or f"{actor.kind} {actor.id}").strip()[:200],
    )


def _change(adapter: Adapter, name: str, state: dict[str, Any], action: str, reason: str) -> Alias:
    """Set the alias's target to `state` (see AliasChange); an equal target is not recorded."""
    # Every change of routes locks their table before the audit log, so that no two block each other.
    route_lock()
    alias = Alias.objects.filter(adapter=adapter, name=name).first()
    before = None if alias is None else alias_state(alias)
    arms = [(_ready(adapter, number), percent) for number, percent in state["arms"]]
    version = _ready(adapter, state["version"])
    # Versions that it has already are not checked, so that a split can be ended whatever has become of them.
    held = set() if before is None else {before["version"], *(number for number, _ in before["arms"])}
    for target in {item.number: item for item in (version, *(arm for arm, _ in arms))}.values():
        if target.number not in held:
            _check_served(adapter, target)
    if alias is not None and before == state:
        return alias
    alias, _ = Alias.objects.update_or_create(adapter=adapter, name=name, defaults={"version": version})
    alias.arms.all().delete()
    AliasArm.objects.bulk_create(AliasArm(alias=alias, version=arm, percent=percent) for arm, percent in arms)
    # The change comes first: it holds the creation time that the route publishes.
    _record(alias, adapter, action, before, state, reason)
    adapter_publish(adapter=adapter)
    return alias


def _record(
    alias: Alias,
    adapter: Adapter,
    action: str,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    reason: str,
) -> None:
    actor = current_origin().who()
    AliasChange.objects.create(
        adapter=adapter,
        alias=alias.name,
        before=before,
        after=after,
        by=(actor.name or f"{actor.kind} {actor.id}").strip()[:200],
        reason=checked_text(reason, field="reason", most=_REASON),
    )
    told = after if after is None or not reason else after | {"reason": reason}
    audit_record(tenant=adapter.tenant_id, action=action, target=alias, before=before, after=told)
    state = {"adapter": adapter.name, "alias": alias.name, "version": None, "reason": reason, **(after or {})}
    event_emit(tenant=adapter.tenant_id, type="adapter.alias.changed", data=state)


def _check_alias(name: str) -> None:
    if SLUG_PATTERN.fullmatch(name) is None:
        raise InvalidInputError(
            "an alias is 1-63 lower-case letters, digits and inner hyphens", field="alias"
        )
    if name[0] == "v" and name[1:].isdigit():
        raise InvalidInputError(f"{name!r} looks like a version number: choose another alias", field="alias")


def _check_served(adapter: Adapter, version: AdapterVersion) -> None:
    """Raise ConflictError if nothing can serve the version: the name's callers would get errors."""
    if problem := serving_problem(base_model=adapter.base_model, ref=version.ref()):
        raise ConflictError(f"version {version.number} of {adapter.name} cannot be named: {problem}")


def _ready(adapter: Adapter, number: int) -> AdapterVersion:
    version = version_get(adapter=adapter, number=number)
    if not version.is_callable:
        raise ConflictError(f"version {number} of {adapter.name} is {version.status}, not ready")
    return version
