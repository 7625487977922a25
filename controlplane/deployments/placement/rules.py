"""Operators' rules for single adapters: pin, move and evict. `placement.reconciler` applies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.capabilities import RunningEngine, base_needs
from controlplane.deployments.copies.publishing import base_publish
from controlplane.deployments.journal import actor_name, step_add
from controlplane.deployments.models import AdapterRule, Copy, Deployment
from controlplane.deployments.placement.placements import leaves_at
from controlplane.deployments.placement.selectors import MOST_RULES, demand_placeable, placed_ref, rule_get
from controlplane.deployments.scheduling import RECONCILE_TASK
from controlplane.deployments.selectors import deployment_locked
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue

MOST_COPIES: Final = 1000
_OPERATOR_FIELDS: Final = ("engine_name", "copies", "on", "away", "leaving")


@transaction.atomic
def adapter_pin(
    *, deployment: Deployment, engine_name: str, copies: int | None = None, on: Sequence[str] = ()
) -> AdapterRule:
    """Pin an adapter version: load it on `copies` copies ahead of requests and keep it there.

    A removed copy is replaced by another one.

    Args:
        copies: number of copies; default: the length of `on`, or 1.
        on: ids of the first copies; by default copies that already hold the adapter are preferred.

    Raises:
        InvalidInputError: a copy is not the deployment's, or its target cannot place adapters.
        NotFoundError: no route leads to the adapter.
        ConflictError: the deployment is being removed, or has too many rules.
    """
    row, ref = _placeable(deployment, engine_name)
    named = _own_copies(row, on, field="on")
    _check_served(row, ref, named, field="on" if named else "adapter")
    count = max(1, len(named)) if copies is None else copies
    if not max(1, len(named)) <= count <= MOST_COPIES:
        text = f"copies must be an integer from {max(1, len(named))} to {MOST_COPIES}"
        raise InvalidInputError(text, field="copies")

    def change(rule: AdapterRule) -> None:
        rule.copies, rule.on = count, named or list(rule.on)[:count]
        rule.away = [copy for copy in rule.away if copy not in rule.on]
        # Unfinished moves are decided anew; evictions that already left the routes continue.
        rule.leaving = {copy: at for copy, at in rule.leaving.items() if at and copy not in rule.on}

    where = f" ({', '.join(named)})" if named else ""
    return _change(row, ref, "pin", f"on {count} copies{where}", change)


@transaction.atomic
def adapter_unpin(*, deployment: Deployment, engine_name: str) -> None:
    """Remove an adapter's rule: requests load it on demand, and a full memory may drop it.

    Raises:
        NotFoundError: the adapter has no rule.
        ConflictError: the deployment is being removed.
    """
    row = deployment_locked(deployment)
    rule = rule_get(deployment=row, engine_name=engine_name)

    def change(rule: AdapterRule) -> None:
        rule.copies, rule.on, rule.away, rule.leaving = 0, [], [], {}

    _change(row, AdapterRef.from_dict(rule.ref), "unpin", "asked for", change)


@transaction.atomic
def adapter_evict(
    *, deployment: Deployment, engine_name: str, copies: Sequence[str] = (), keep_away: bool = False
) -> AdapterRule:
    """Make copies drop an adapter from memory after its last request there.

    New requests go to other copies meanwhile. If none is left, and after the eviction, a request loads the
    adapter again on the copy that gets it.

    Args:
        copies: ids; empty for all.
        keep_away: until `unpin`, send its requests to these copies only if no other copy takes them.

    Raises:
        InvalidInputError: as for `adapter_pin`, or it would be kept away from every copy.
        NotFoundError: no route leads to the adapter.
        ConflictError: it is pinned there, or the deployment is being removed.
    """
    row, ref = _placeable(deployment, engine_name)
    every = list(
        Copy.objects.filter(deployment=row).order_by("created_at", "id").values_list("pk", flat=True)
    )
    named = _own_copies(row, copies, field="copies") or every

    def change(rule: AdapterRule) -> None:
        if keep_away and not set(every) - {*rule.away, *named}:
            raise InvalidInputError(
                "keep_away must leave at least one copy for the adapter: name fewer copies", field="keep_away"
            )
        if pinned := [copy for copy in named if copy in rule.on]:
            raise ConflictError(f"the adapter is pinned on {', '.join(pinned)}: move it, or unpin it first")
        at = leaves_at(timezone.now()).isoformat()
        rule.leaving = dict(rule.leaving) | dict.fromkeys(named, at)
        if keep_away:
            rule.away = sorted({*rule.away, *named})

    return _change(row, ref, "evict", f"from {', '.join(named) or 'no copy'}", change)


@transaction.atomic
def adapter_move(*, deployment: Deployment, engine_name: str, source: str, to: str) -> AdapterRule:
    """Move an adapter from copy `source` to copy `to` without failing requests.

    It is loaded and pinned on `to`, then new requests go there, then `source` drops it after its last
    request. `source` serves it until `to` does.

    Raises:
        InvalidInputError: as for `adapter_pin`, or both are the same copy.
        NotFoundError: no route leads to the adapter.
        ConflictError: it is pinned on both, or the deployment is being removed.
    """
    row, ref = _placeable(deployment, engine_name)
    if source == to:
        raise InvalidInputError("to_copy must differ from from_copy", field="to_copy")
    _own_copies(row, [source], field="from_copy")
    _check_served(row, ref, _own_copies(row, [to], field="to_copy"), field="to_copy")

    def change(rule: AdapterRule) -> None:
        if source in rule.on and to in rule.on:
            raise ConflictError(f"the adapter is pinned on both copies: pin it on {to} only")
        if source in rule.on:
            rule.on = [to if copy == source else copy for copy in rule.on]
        elif to not in rule.on:
            rule.on = [*rule.on, to]
        rule.copies = max(rule.copies, len(rule.on))
        rule.away = [copy for copy in rule.away if copy != to]
        rule.leaving = {copy: at for copy, at in rule.leaving.items() if copy != to} | {source: ""}

    return _change(row, ref, "move", f"{source} -> {to}", change)


def _placeable(deployment: Deployment, engine_name: str) -> tuple[Deployment, AdapterRef]:
    row = deployment_locked(deployment)
    demand_placeable(row)
    return row, placed_ref(deployment=row, engine_name=engine_name)


def _check_served(deployment: Deployment, ref: AdapterRef, ids: Sequence[str], *, field: str) -> None:
    """Raise InvalidInputError if a named copy cannot serve the adapter, or without names if no copy can."""
    base = base_needs(deployment.base_model, deployment.variant)
    rows = Copy.objects.filter(deployment=deployment)
    problems = {copy.pk: RunningEngine.of_copy(copy).problem(base, ref) for copy in rows}
    refused = {pk: text for pk, text in problems.items() if text and (not ids or pk in ids)}
    if refused and (ids or len(refused) == len(problems)):
        text = "; ".join(f"{pk}: {reason}" for pk, reason in refused.items())
        raise InvalidInputError(f"{ref.name} cannot be served there: {text}", field=field)


def _own_copies(deployment: Deployment, ids: Sequence[str], *, field: str) -> list[str]:
    """Return the ids without duplicates. Raises InvalidInputError for a copy of another deployment."""
    known = set(Copy.objects.filter(deployment=deployment).values_list("pk", flat=True))
    if strangers := [copy for copy in ids if copy not in known]:
        listed = ", ".join(sorted(known)) or "none"
        raise InvalidInputError(
            f"{', '.join(strangers)}: the copies of {deployment.name} are {listed}", field=field
        )
    return list(dict.fromkeys(ids))


def _change(
    deployment: Deployment, ref: AdapterRef, verb: str, cause: str, change: Callable[[AdapterRule], None]
) -> AdapterRule:
    """Change the adapter's rule, creating it if needed. The caller holds the deployment's lock."""
    rules = AdapterRule.objects.filter(deployment=deployment)
    rule = rules.select_for_update().filter(engine_name=ref.name).first()
    before = None if rule is None else _operator_values(rule)
    if rule is None:
        if rules.count() >= MOST_RULES:
            raise ConflictError(f"{MOST_RULES} adapters are placed on {deployment.name}: unpin one")
        rule = AdapterRule(deployment=deployment, engine_name=ref.name, created_by=actor_name(), generation=0)
    change(rule)
    rule.ref = ref.to_dict()
    if before == _operator_values(rule):
        return rule
    rule.generation += 1
    rule.status, rule.reason = AdapterRule.Status.LOADING, ""
    if not rule.copies:
        rule.status = AdapterRule.Status.LEAVING
    elif rule.leaving:
        rule.status = AdapterRule.Status.MOVING
    rule.save()
    now = timezone.now()
    Deployment.objects.filter(pk=deployment.pk).update(generation=deployment.generation + 1, next_at=now)
    step_add(deployment, f"adapter.{verb}", ref.name, cause)
    base_publish(deployment.base_model)
    enqueue(RECONCILE_TASK, deployment_id=deployment.pk)
    audit_record(
        tenant="", action=f"adapter_rule.{verb}", target=rule, before=before, after=_operator_values(rule)
    )
    return rule


def _operator_values(rule: AdapterRule) -> dict[str, Any]:
    """Return the fields that operators set."""
    return {name: getattr(rule, name) for name in _OPERATOR_FIELDS}
