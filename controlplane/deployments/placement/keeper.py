"""Keeps adapters where people placed them: the reconciler's part, while it holds the deployment's lease.

Each look compares rules with what copies say they hold, loads what is missing, drops what may go, and then
tells gateways, if they were told something else last. It keeps nothing in mind: one that dies between two
calls is followed by one that finds the adapter loaded, or not.
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
from controlplane.deployments.models import Copy, Deployment, DeploymentStep
from controlplane.deployments.placement.memories import memories_read
from controlplane.deployments.placement.models import AdapterRule
from controlplane.deployments.placement.residency import residency_of
from controlplane.deployments.placement.residency.base import Memory, Residency
from controlplane.deployments.placement.timing import leaves_at
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.services import homes_publish
from controlplane.deployments.steps import step_add
from controlplane.routes.selectors import route_refs

Status = AdapterRule.Status
MAX_SECONDS: Final = 30.0
"""Then the next look goes on, so that no deployment keeps a worker from the others."""
SOON: Final = timedelta(seconds=2)
_LATEST: Final = timedelta(seconds=60)
_READ_SECONDS: Final = 15.0
"""Copies' memories all together; a lease is longer than this and a load."""
_UNTOLD: Final = timedelta(minutes=5)
"""When an adapter may leave whose gateways are told at the end of this look; then it is sooner. Whoever dies
between the two leaves it for so long, and drops nothing that gateways know nothing of."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left to be done.

    Attributes:
        within: until the next look; None where that has its usual time.
        failed: what to do about it; "" where nothing was refused for good.
    """

    within: timedelta | None = None
    failed: str = ""

    def also(self, other: Kept) -> Kept:
        """Both: the sooner look, the first refusal."""
        within = [span for span in (self.within, other.within) if span is not None]
        return Kept(min(within, default=None), self.failed or other.failed)


def rules_keep(*, deployment: Deployment, renew: Callable[..., None]) -> Kept:
    """One look at all rules of a deployment; at the end gateways know where its adapters are.

    Args:
        renew: `Lease.renew`. Raises LeaseLostError.
    """
    rules = list(AdapterRule.objects.filter(deployment=deployment).order_by("pk"))
    kept = _look(deployment, rules, renew) if rules else Kept()
    with transaction.atomic():
        renew(now=True)
        # Also without any rule: the base's entry is another deployment's too, or was written by a process of
        # the release before, which knows of no homes.
        homes_publish(deployment.base_model)
    if rules:
        _told_now(deployment)
    return kept


def _look(deployment: Deployment, rules: list[AdapterRule], renew: Callable[..., None]) -> Kept:
    names = [rule.engine_name for rule in rules]
    routed = route_refs(base_model=deployment.base_model.name, names=names)
    kept = Kept()
    with closing(_Keeper.of(deployment, rules, renew)) as keeper:
        # Any order: who is not reached this time is not the last one again.
        for rule in random.SystemRandom().sample(rules, len(rules)):
            if keeper.is_late:
                return kept.also(Kept(SOON))
            kept = kept.also(keeper.keep(rule, routed.get(rule.engine_name)))
    return kept


def _told_now(deployment: Deployment) -> None:
    """Gateways have been told now: what this look took from their routes may leave when they have heard."""
    at = leaves_at(timezone.now())
    for rule in AdapterRule.objects.filter(deployment=deployment).exclude(leaving={}):
        later = [copy for copy, when in rule.leaving.items() if when and datetime.fromisoformat(when) > at]
        if later:
            leaving = dict(rule.leaving) | dict.fromkeys(later, at.isoformat())
            AdapterRule.objects.filter(pk=rule.pk, generation=rule.generation).update(leaving=leaving)


@dataclass(slots=True)
class _Keeper:
    """`memories`: as they were at this look, or why a copy does not tell. `pins`: by copy, how many adapters
    are to be pinned there. `kept`: by copy and what the copy knows an adapter by, under how many names: of
    content one name's pin is the other's. A rule whose turn it is is in neither. `until`: on the monotonic
    clock, after which nothing new is begun."""

    deployment: Deployment
    renew: Callable[..., None]
    copies: dict[str, Copy]
    memories: dict[str, Memory | ProvisioningError]
    until: float
    pins: Counter[str] = field(default_factory=Counter)
    kept: Counter[tuple[str, str]] = field(default_factory=Counter)
    _open: dict[str, Residency | None] = field(default_factory=dict)

    @classmethod
    def of(cls, deployment: Deployment, rules: Iterable[AdapterRule], renew: Callable[..., None]) -> Self:
        own = list(Copy.objects.filter(deployment=deployment).order_by("created_at", "id"))
        memories = memories_read(own, seconds=_READ_SECONDS)
        renew()
        keeper = cls(
            deployment, renew, {copy.pk: copy for copy in own}, memories, time.monotonic() + MAX_SECONDS
        )
        for rule in rules:
            keeper._count(rule, 1)
        return keeper

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.until

    def keep(self, rule: AdapterRule, routed: AdapterRef | None) -> Kept:
        """One rule's look."""
        before, ref = _written(rule), routed or AdapterRef.from_dict(rule.ref)
        self._count(rule, -1)
        self._see(rule, ref)
        if routed is None:
            rule.copies, rule.on, rule.away = 0, [], []
            rule.leaving = dict.fromkeys(rule.ready, timezone.now().isoformat()) | rule.leaving
        self._choose(rule, ref)
        self._count(rule, 1)
        soon, failed = self._pin(rule, ref)
        soon = self._unpin(rule, ref) or soon
        soon = self._leave(rule, ref) or soon
        rule.status = _status(rule, failed=bool(failed))
        if before != _written(rule) or (rule.is_over and not rule.ready):
            saved = self._save(rule)
            return Kept(SOON if soon or not saved else None, failed)
        return Kept(_patience(rule) if soon else None, failed)

    def close(self) -> None:
        for residency in self._open.values():
            if residency is not None:
                residency.close()

    def _count(self, rule: AdapterRule, change: int) -> None:
        for copy in rule.on:
            self.pins[copy] += change
            self.kept[self._key(rule, copy)] += change

    def _key(self, rule: AdapterRule, copy: str) -> tuple[str, str]:
        """What a copy knows it by: servers such as vLLM know names alone."""
        known = self.copies.get(copy)
        by_name = known is not None and known.kind == Copy.Kind.OPENAI_HTTP
        return copy, rule.engine_name if by_name else rule.ref["sha256"]

    def _see(self, rule: AdapterRule, ref: AdapterRef) -> None:
        """What of the rule is still about copies that there are, and which of them say that they keep it."""
        rule.reason = ""
        for copy in rule.away:
            if copy not in self.copies:
                cause = f"{copy} has gone: what comes in its place is not kept free of it"
                step_add(self.deployment, "keep_away", ref.name, cause, DeploymentStep.Outcome.NOTED)
        rule.on = [copy for copy in rule.on if copy in self.copies]
        rule.away = [copy for copy in rule.away if copy in self.copies]
        rule.leaving = {copy: at for copy, at in rule.leaving.items() if copy in self.copies}
        ready = []
        for copy in self.copies:
            memory = self._memory(copy)
            held = None if memory is None else memory.of(ref)
            # One that does not answer now is believed what it said last.
            if copy in rule.ready if memory is None else held is not None and held.pinned:
                ready.append(copy)
        rule.ready = ready

    def _choose(self, rule: AdapterRule, ref: AdapterRef) -> None:
        """Other copies for those that have gone; fewer where fewer are wanted."""
        rule.on = rule.on[: rule.copies]
        missing = rule.copies - len(rule.on)
        if not missing:
            return
        free = [copy for copy in self.copies if copy not in {*rule.on, *rule.leaving, *rule.away}]
        free.sort(key=lambda copy: self._cost(copy, ref))
        if len(free) < missing:
            # Nobody else is left: it stays on those that it was to leave.
            free += [copy for copy, at in rule.leaving.items() if not at]
        for copy in free[:missing]:
            rule.on.append(copy)
            rule.leaving.pop(copy, None)

    def _cost(self, copy: str, ref: AdapterRef) -> tuple[bool, bool, int]:
        """Sorts copies: those that answer first, of them those that hold it, of them those with few pins."""
        memory = self._memory(copy)
        return memory is None, memory is None or memory.of(ref) is None, self.pins[copy]

    def _pin(self, rule: AdapterRule, ref: AdapterRef) -> tuple[bool, str]:
        """Loads it where it is missing; whether some of it is left to do, and what was refused for good."""
        soon, failed = False, ""
        for copy in [copy for copy in rule.on if copy not in rule.ready]:
            if self.is_late:
                return True, failed
            error = self._silence(copy) or self._load(rule, ref, copy)
            if error is not None:
                rule.reason = _sentence(copy, error)
                soon = soon or error.transient
                failed = failed if error.transient else f"{ref.name}: {error}"
        if not rule.reason and len(rule.on) < rule.copies:
            rule.reason = f"it is on {len(rule.on)} copies, and wanted on {rule.copies}: there are no more"
        return soon, failed

    def _load(self, rule: AdapterRule, ref: AdapterRef, copy: str) -> ProvisioningError | None:
        """What was refused."""
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
        """Where it is wanted no longer, and does not leave either; whether some of it is left to do."""
        soon = False
        for copy in [copy for copy in rule.ready if copy not in rule.on and copy not in rule.leaving]:
            if self.is_late:
                return True
            try:
                if not self.kept[self._key(rule, copy)]:
                    self._residency(copy).unpin(ref)
            except ProvisioningError as error:
                soon, rule.reason = soon or error.transient, _sentence(copy, error)
                continue
            rule.ready.remove(copy)
        return soon

    def _leave(self, rule: AdapterRule, ref: AdapterRef) -> bool:
        """Lets it go where its time has come, once it is ready where it is to be; whether a look before the
        usual time would find more of it to do.

        A copy counts as left when a look finds it without the adapter, so at least one look after it was
        told: gateways have then heard from it that it has none.
        """
        now, soon = timezone.now(), False
        ready = len(rule.on) >= rule.copies and set(rule.on) <= set(rule.ready)
        for copy, at in list(rule.leaving.items()):
            if not at:
                # Until it is ready elsewhere nothing is to do here: `_pin` says when that is tried again.
                soon = soon or ready
                rule.leaving[copy] = (now + _UNTOLD).isoformat() if ready else ""
            elif datetime.fromisoformat(at) > now or self.is_late:
                soon = True
            elif silent := self._silence(copy):
                soon, rule.reason = soon or silent.transient, _sentence(copy, silent)
            elif self.kept[self._key(rule, copy)]:
                del rule.leaving[copy]
                step_add(self.deployment, "evict_adapter", ref.name, f"{copy} keeps it under another name")
            elif self._holds(copy, ref):
                soon = self._evict(rule, ref, copy) or soon
            else:
                del rule.leaving[copy]
                step_add(self.deployment, "evict_adapter", ref.name, f"has left {copy}")
        return soon

    def _evict(self, rule: AdapterRule, ref: AdapterRef, copy: str) -> bool:
        """Whether it is to be looked whether it has gone."""
        try:
            gone = self._residency(copy).evict(ref)
        except ProvisioningError as error:
            rule.reason = _sentence(copy, error)
            if not error.transient:
                # Such as a pin of somebody else's, by name: that stays.
                del rule.leaving[copy]
                failed = DeploymentStep.Outcome.FAILED
                step_add(self.deployment, "evict_adapter", ref.name, str(error), failed)
            return error.transient
        rule.ready = [other for other in rule.ready if other != copy]
        if not gone:
            rule.reason = f"leaves {copy} with its last requests"
        return True

    def _save(self, rule: AdapterRule) -> bool:
        """Unless somebody has changed it meanwhile: that is looked at next."""
        mine = AdapterRule.objects.filter(pk=rule.pk, generation=rule.generation)
        with transaction.atomic():
            self.renew(now=True)
            if rule.is_over and not rule.ready:
                return bool(mine.delete()[0])
            return bool(mine.update(**_written(rule), changed_at=timezone.now()))

    def _residency(self, copy: str) -> Residency:
        self.renew()
        if copy not in self._open:
            self._open[copy] = residency_of(self.copies[copy])
        found = self._open[copy]
        if found is None:
            raise ProvisioningError(f"{copy} does not tell which adapters it holds")
        return found

    def _memory(self, copy: str) -> Memory | None:
        """None of one that does not tell."""
        found = self.memories[copy]
        return None if isinstance(found, ProvisioningError) else found

    def _silence(self, copy: str) -> ProvisioningError | None:
        """Why it does not tell."""
        found = self.memories[copy]
        return found if isinstance(found, ProvisioningError) else None

    def _holds(self, copy: str, ref: AdapterRef) -> bool:
        memory = self._memory(copy)
        return memory is not None and memory.of(ref) is not None


def _sentence(copy: str, error: ProvisioningError) -> str:
    return f"{copy} does not answer" if error.code == "away" else str(error)


def _patience(rule: AdapterRule) -> timedelta:
    """Until what is still as it was is tried again: as long as it has been so, which doubles each time."""
    return min(max(timezone.now() - rule.changed_at, SOON), _LATEST)


def _written(rule: AdapterRule) -> dict[str, Any]:
    """What the keeper writes of a rule, as it is at this moment."""
    return {
        "copies": rule.copies, "on": list(rule.on), "away": list(rule.away), "leaving": dict(rule.leaving),
        "ready": list(rule.ready), "status": rule.status, "reason": rule.reason,
    }  # fmt: skip


def _status(rule: AdapterRule, *, failed: bool) -> str:
    if failed:
        return Status.FAILED
    if rule.leaving:
        return Status.MOVING if rule.copies else Status.LEAVING
    if len(rule.on) < rule.copies:
        return Status.WAITING
    return Status.READY if set(rule.on) <= set(rule.ready) else Status.LOADING
