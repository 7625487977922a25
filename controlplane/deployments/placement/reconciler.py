"""Keep adapters on the copies where operators placed them; runs under the deployment's lease.

Each run compares the rules with what the copies report, loads missing adapters and evicts those whose time
has come. Then it publishes the result to gateways if it changed. It keeps no state between runs: after a
crash between two calls the next run finds the adapter loaded or not.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Self

from django.db import transaction
from django.utils import timezone

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.capabilities import RunningEngine, base_needs
from controlplane.deployments.copies.publishing import homes_publish
from controlplane.deployments.journal import step_add
from controlplane.deployments.models import AdapterRule, Copy, Deployment, DeploymentStep
from controlplane.deployments.placement.memories import memories_read
from controlplane.deployments.placement.placements import leaves_at
from controlplane.deployments.placement.residency import residency_of
from controlplane.deployments.placement.residency.base import Memory, Residency
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.routes.selectors import route_refs

Status = AdapterRule.Status
MAX_SECONDS: Final = 30.0
"""Longest run; the next one continues, so that no deployment blocks a Celery worker."""
SOON: Final = timedelta(seconds=2)
_LATEST: Final = timedelta(seconds=60)
_READ_SECONDS: Final = 15.0
"""Limit for reading the memories of all copies; a lease is longer than this and one load."""
_UNPUBLISHED: Final = timedelta(minutes=5)
"""Eviction delay before gateways know the new routes; publishing at the end of the run shortens it. After a
crash in between, no adapter is evicted that gateways still route to."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run.

    Attributes:
        within: time until the next run; None for the usual interval.
        failed: what to do about a permanent refusal; "" without one.
    """

    within: timedelta | None = None
    failed: str = ""

    def also(self, other: Outcome) -> Outcome:
        """Combine two results: the earlier next run and the first refusal."""
        within = [span for span in (self.within, other.within) if span is not None]
        return Outcome(min(within, default=None), self.failed or other.failed)


def reconcile_placements(*, deployment: Deployment, renew: Callable[..., None]) -> Outcome:
    """Reconcile all rules of a deployment once, and publish to gateways where its adapters are.

    Args:
        renew: `Lease.renew`. Raises LeaseLostError.
    """
    rules = list(AdapterRule.objects.filter(deployment=deployment).order_by("pk"))
    result = _reconcile_rules(deployment, rules, renew) if rules else Outcome()
    with transaction.atomic():
        renew(now=True)
        # Publish also without rules: another deployment, or a process of the previous release, which knows no
        # homes, may have written the base's entry.
        homes_publish(deployment.base_model)
    if rules:
        _shorten_evictions(deployment)
    return result


def _reconcile_rules(deployment: Deployment, rules: list[AdapterRule], renew: Callable[..., None]) -> Outcome:
    """Reconcile the rules until the time limit; return the combined result."""
    names = [rule.engine_name for rule in rules]
    routed = route_refs(base_model=deployment.base_model.name, names=names)
    result = Outcome()
    with closing(_PlacementReconciler.start(deployment, rules, renew)) as reconciler:
        # Shuffle the rules so that a late run does not always skip the same ones.
        for rule in random.SystemRandom().sample(rules, len(rules)):
            if reconciler.is_late:
                return result.also(Outcome(SOON))
            result = result.also(reconciler.reconcile(rule, routed.get(rule.engine_name)))
    return result


def _shorten_evictions(deployment: Deployment) -> None:
    """Shorten the delay of pending evictions, now that gateways know the new routes."""
    evicted_at = leaves_at(timezone.now())
    for rule in AdapterRule.objects.filter(deployment=deployment).exclude(leaving={}):
        delayed = [
            copy for copy, when in rule.leaving.items() if when and datetime.fromisoformat(when) > evicted_at
        ]
        if delayed:
            leaving = dict(rule.leaving) | dict.fromkeys(delayed, evicted_at.isoformat())
            AdapterRule.objects.filter(pk=rule.pk, generation=rule.generation).update(leaving=leaving)


@dataclass(slots=True)
class _PlacementReconciler:
    """Reconciles the rules of one deployment during one run.

    Attributes:
        memories: memory of each copy at the start of the run, or why it could not be read.
        until: time on the monotonic clock after which no new work begins.
        pins: number of adapters to pin, by copy.
        pin_counts: number of rules that pin an adapter, by copy and the copy's key for the adapter. Names of
            the same content share their pin.

    Both counters exclude the rule that is being reconciled.
    """

    deployment: Deployment
    renew: Callable[..., None]
    copies: dict[str, Copy]
    memories: dict[str, Memory | ProvisioningError]
    until: float
    pins: Counter[str] = field(default_factory=Counter)
    pin_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _open: dict[str, Residency | None] = field(default_factory=dict)

    @classmethod
    def start(cls, deployment: Deployment, rules: Iterable[AdapterRule], renew: Callable[..., None]) -> Self:
        """Read the copies' memories and count the rules' pins."""
        rows = list(Copy.objects.filter(deployment=deployment).order_by("created_at", "id"))
        memories = memories_read(rows, seconds=_READ_SECONDS)
        renew()
        reconciler = cls(
            deployment, renew, {copy.pk: copy for copy in rows}, memories, time.monotonic() + MAX_SECONDS
        )
        for rule in rules:
            reconciler._count(rule, 1)
        return reconciler

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.until

    def reconcile(self, rule: AdapterRule, routed: AdapterRef | None) -> Outcome:
        """Reconcile one rule."""
        before, ref = _stored_values(rule), routed or AdapterRef.from_dict(rule.ref)
        self._count(rule, -1)
        self._refresh(rule, ref)
        if routed is None:
            rule.copies, rule.on, rule.away = 0, [], []
            rule.leaving = dict.fromkeys(rule.ready, timezone.now().isoformat()) | rule.leaving
        self._choose_copies(rule, ref)
        self._count(rule, 1)
        soon, failed = self._pin(rule, ref)
        soon = self._unpin(rule, ref) or soon
        soon = self._evict_due(rule, ref) or soon
        rule.status = _status(rule, failed=bool(failed))
        if before != _stored_values(rule) or (rule.is_over and not rule.ready):
            saved = self._save(rule)
            return Outcome(SOON if soon or not saved else None, failed)
        return Outcome(_retry_delay(rule) if soon else None, failed)

    def close(self) -> None:
        for residency in self._open.values():
            if residency is not None:
                residency.close()

    def _count(self, rule: AdapterRule, change: int) -> None:
        for copy in rule.on:
            self.pins[copy] += change
            self.pin_counts[self._key(rule, copy)] += change

    def _key(self, rule: AdapterRule, copy: str) -> tuple[str, str]:
        """Return the copy's key for the adapter: its name on servers such as vLLM, else its digest."""
        known = self.copies.get(copy)
        by_name = known is not None and known.kind == Copy.Kind.OPENAI_HTTP
        return copy, rule.engine_name if by_name else rule.ref["sha256"]

    def _refresh(self, rule: AdapterRule, ref: AdapterRef) -> None:
        """Drop removed copies from the rule, and read which copies have the adapter pinned."""
        rule.reason = ""
        for copy in rule.away:
            if copy not in self.copies:
                cause = f"{copy} was removed: its replacement is not excluded"
                step_add(self.deployment, "keep_away", ref.name, cause, DeploymentStep.Outcome.NOTED)
        rule.on = [copy for copy in rule.on if copy in self.copies]
        rule.away = [copy for copy in rule.away if copy in self.copies]
        rule.leaving = {copy: at for copy, at in rule.leaving.items() if copy in self.copies}
        ready = []
        for copy in self.copies:
            memory = self._memory(copy)
            held = None if memory is None else memory.entry(ref)
            # If a copy does not answer, assume its last known state.
            if copy in rule.ready if memory is None else held is not None and held.pinned:
                ready.append(copy)
        rule.ready = ready

    def _choose_copies(self, rule: AdapterRule, ref: AdapterRef) -> None:
        """Choose copies to replace removed ones; drop copies if fewer are wanted."""
        rule.on = rule.on[: rule.copies]
        missing = rule.copies - len(rule.on)
        if not missing:
            return
        taken = {*rule.on, *rule.leaving, *rule.away}
        free = [copy for copy in self.copies if copy not in taken and self._serves(copy, ref)]
        free.sort(key=lambda copy: self._cost(copy, ref))
        if len(free) < missing:
            # No other copy is left: keep the adapter on copies that it was going to leave.
            free += [copy for copy, at in rule.leaving.items() if not at]
        for copy in free[:missing]:
            rule.on.append(copy)
            rule.leaving.pop(copy, None)

    def _serves(self, copy: str, ref: AdapterRef) -> bool:
        base = base_needs(self.deployment.base_model, self.deployment.variant)
        return not RunningEngine.of_copy(self.copies[copy]).problem(base, ref)

    def _cost(self, copy: str, ref: AdapterRef) -> tuple[bool, bool, int]:
        """Sort key of copies: readable ones first, then holders of the adapter, then fewest pins."""
        memory = self._memory(copy)
        return memory is None, memory is None or memory.entry(ref) is None, self.pins[copy]

    def _pin(self, rule: AdapterRule, ref: AdapterRef) -> tuple[bool, str]:
        """Load the adapter on desired copies that lack it.

        Returns:
            True if work remains, and the permanent refusal or "".
        """
        soon, failed = False, ""
        for copy in [copy for copy in rule.on if copy not in rule.ready]:
            if self.is_late:
                return True, failed
            error = self._read_error(copy) or self._load(rule, ref, copy)
            if error is not None:
                rule.reason = _error_text(copy, error)
                soon = soon or error.transient
                failed = failed if error.transient else f"{ref.name}: {error}"
        if not rule.reason and len(rule.on) < rule.copies:
            count = f"{len(rule.on)} of {rule.copies} desired copies"
            rule.reason = f"the adapter is on {count}: no other copy can serve it"
        return soon, failed

    def _load(self, rule: AdapterRule, ref: AdapterRef, copy: str) -> ProvisioningError | None:
        """Load and pin the adapter on one copy; return the refusal, or None."""
        began = time.monotonic()
        try:
            self._residency(copy).pin(ref)
        except ProvisioningError as error:
            return error
        rule.ready = [other for other in self.copies if other == copy or other in rule.ready]
        seconds = time.monotonic() - began
        step_add(self.deployment, "load_adapter", ref.name, f"to be on {copy}", seconds=seconds)
        return None

    def _unpin(self, rule: AdapterRule, ref: AdapterRef) -> bool:
        """Unpin the adapter on copies that should not keep it and that it is not leaving.

        Returns:
            True if work remains.
        """
        soon = False
        for copy in [copy for copy in rule.ready if copy not in rule.on and copy not in rule.leaving]:
            if self.is_late:
                return True
            try:
                if not self.pin_counts[self._key(rule, copy)]:
                    self._residency(copy).unpin(ref)
            except ProvisioningError as error:
                soon, rule.reason = soon or error.transient, _error_text(copy, error)
                continue
            rule.ready.remove(copy)
        return soon

    def _evict_due(self, rule: AdapterRule, ref: AdapterRef) -> bool:
        """Evict the adapter where its time has come, once it is ready on its desired copies.

        An eviction is finished when a later run finds the copy without the adapter. By then gateways have
        heard from the copy that it does not hold it.

        Returns:
            True if a run before the usual interval would find work.
        """
        now, soon = timezone.now(), False
        ready = len(rule.on) >= rule.copies and set(rule.on) <= set(rule.ready)
        for copy, at in list(rule.leaving.items()):
            if not at:
                # Wait until the adapter is ready elsewhere; `_pin` decides when that is retried.
                soon = soon or ready
                rule.leaving[copy] = (now + _UNPUBLISHED).isoformat() if ready else ""
            elif datetime.fromisoformat(at) > now or self.is_late:
                soon = True
            elif error := self._read_error(copy):
                soon, rule.reason = soon or error.transient, _error_text(copy, error)
            elif self.pin_counts[self._key(rule, copy)]:
                del rule.leaving[copy]
                step_add(
                    self.deployment, "evict_adapter", ref.name, f"{copy} keeps the adapter under another name"
                )
            elif self._holds(copy, ref):
                soon = self._evict(rule, ref, copy) or soon
            else:
                del rule.leaving[copy]
                step_add(self.deployment, "evict_adapter", ref.name, f"has left {copy}")
        return soon

    def _evict(self, rule: AdapterRule, ref: AdapterRef, copy: str) -> bool:
        """Evict the adapter from one copy; return True if the caller must check again."""
        try:
            gone = self._residency(copy).evict(ref)
        except ProvisioningError as error:
            rule.reason = _error_text(copy, error)
            if not error.transient:
                # For example another client's pin by name, which stays.
                del rule.leaving[copy]
                failed = DeploymentStep.Outcome.FAILED
                step_add(self.deployment, "evict_adapter", ref.name, str(error), failed)
            return error.transient
        rule.ready = [other for other in rule.ready if other != copy]
        if not gone:
            rule.reason = f"leaves {copy} with its last requests"
        return True

    def _save(self, rule: AdapterRule) -> bool:
        """Save the rule, unless an operator changed it meanwhile.

        Returns:
            False if it was changed; the next run reads the change.
        """
        unchanged = AdapterRule.objects.filter(pk=rule.pk, generation=rule.generation)
        with transaction.atomic():
            self.renew(now=True)
            if rule.is_over and not rule.ready:
                return bool(unchanged.delete()[0])
            return bool(unchanged.update(**_stored_values(rule), changed_at=timezone.now()))

    def _residency(self, copy: str) -> Residency:
        self.renew()
        if copy not in self._open:
            self._open[copy] = residency_of(self.copies[copy])
        found = self._open[copy]
        if found is None:
            raise ProvisioningError(f"{copy} does not report its adapters")
        return found

    def _memory(self, copy: str) -> Memory | None:
        """Return the copy's memory; None if it could not be read."""
        found = self.memories[copy]
        return None if isinstance(found, ProvisioningError) else found

    def _read_error(self, copy: str) -> ProvisioningError | None:
        """Return why the copy's memory could not be read; None if it was read."""
        found = self.memories[copy]
        return found if isinstance(found, ProvisioningError) else None

    def _holds(self, copy: str, ref: AdapterRef) -> bool:
        memory = self._memory(copy)
        return memory is not None and memory.entry(ref) is not None


def _error_text(copy: str, error: ProvisioningError) -> str:
    return f"{copy} does not respond" if error.code == "away" else str(error)


def _retry_delay(rule: AdapterRule) -> timedelta:
    """Return the delay before an unchanged rule is retried: its age, so the delay doubles each time."""
    return min(max(timezone.now() - rule.changed_at, SOON), _LATEST)


def _stored_values(rule: AdapterRule) -> dict[str, Any]:
    """Return the current values of the fields that a run writes."""
    return {
        "copies": rule.copies,
        "on": list(rule.on),
        "away": list(rule.away),
        "leaving": dict(rule.leaving),
        "ready": list(rule.ready),
        "status": rule.status,
        "reason": rule.reason,
    }


def _status(rule: AdapterRule, *, failed: bool) -> str:
    if failed:
        return Status.FAILED
    if rule.leaving:
        return Status.MOVING if rule.copies else Status.LEAVING
    if len(rule.on) < rule.copies:
        return Status.WAITING
    return Status.READY if set(rule.on) <= set(rule.ready) else Status.LOADING
