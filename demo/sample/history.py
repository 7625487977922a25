"""Adds the sample history, in order of time: usage up to each change, then the change, made at its time.

Each step looks first whether it was taken, so that an interrupted run can be repeated.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from django.db import transaction

from contracts.usage_event import UsageEvent
from controlplane.adapters.selectors import adapter_find, version_get
from controlplane.billing.models import Price, PriceBook
from controlplane.billing.months import month_of
from controlplane.billing.services import price_set
from controlplane.catalog.models import BaseModel
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.services import usage_ingest
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create
from demo.credentials import TENANTS
from demo.sample.canary import ADAPTER, ALIAS, Canary
from demo.sample.clock import as_of, history_start
from demo.sample.finance import budget_add, details_add, invoice_close, invoice_draft_current, invoice_pay
from demo.sample.traffic import Caller, Model, events

logger = logging.getLogger(__name__)

KEYS: Final = (("Website (sample)", 0.7), ("Nightly batch (sample)", 0.3))
"""Names of each tenant's API keys that made the usage, with their shares."""
_PER_DAY: Final = {"acme": 170, "globex": 80}
_MODELS: Final = {
    "acme": (
        Model("pirate", "", 0.14, 700, 260),
        Model("strict-json", "", 0.2, 1900, 180),
        Model("support-triage", "", 0.2, 900, 60),
        Model(f"{ADAPTER}@{ALIAS}", "", 0.36, 2100, 420, ALIAS),
        Model("", "", 0.1, 800, 350),
    ),
    "globex": (
        Model("shakespeare", "", 0.6, 1300, 640),
        Model("three-steps", "", 0.3, 1000, 300),
        Model("", "", 0.1, 800, 350),
    ),
}
"""Traffic by tenant. `history_add` fills in engine names; the name "" is the base model."""
_PRIME: Final = 10
"""Price of the sample adapter, as a multiple of the base model's."""
Step = tuple[dt.datetime, Callable[[], object]]


def history_add(*, base_model: BaseModel, now: dt.datetime) -> None:
    """Add the usage since the first day of the month before last, and all that followed from it."""
    this_month = month_of(now.date())
    last_month, first = month_of(this_month - dt.timedelta(days=1)), history_start(now).date()
    acme, globex = (Tenant.objects.get(pk=plan.slug) for plan in TENANTS)
    canary = Canary(tenant=acme, base_model=base_model, ends_by=now - dt.timedelta(days=4))
    with as_of(_time(first)):
        _prepare((acme, globex), base_model)
    canary.register(_time(first))
    usage = _Usage(base_model, canary, first=first, now=now)
    steps: list[Step] = [(moment, step) for moment, step in canary.steps()]
    for tenant in (acme, globex):
        steps += [
            (_time(last_month, 6), partial(invoice_close, tenant, first)),
            (_time(last_month, 9) + dt.timedelta(days=8), partial(invoice_pay, tenant, first)),
            (_time(this_month, 6), partial(invoice_close, tenant, last_month)),
        ]
    # On the first day of a month, before six o'clock, last month is still open.
    steps = sorted((step for step in steps if step[0] <= now), key=lambda step: step[0])
    before = [step for step in steps if step[0] < canary.starts]
    during = [step for step in steps if canary.starts <= step[0] <= canary.ends_by]
    _play(before, usage)
    # Celery judges running rollouts by today's time: it sees this one when it has ended.
    with transaction.atomic():
        _play(during, usage)
    _play(steps[len(before) + len(during) :], usage)
    usage.add_until(now)
    for tenant in (acme, globex):
        with as_of(now):
            invoice_draft_current(tenant)
    with as_of(now):
        budget_add(acme)
    logger.info("sample data since %s was added", first)


def _play(steps: Sequence[Step], usage: _Usage) -> None:
    for moment, step in steps:
        usage.add_until(moment)
        with as_of(moment):
            step()


def sample_keys(tenant: Tenant) -> list[ApiKey]:
    """Return the tenant's sample API keys in the order of KEYS; empty before they were made."""
    found = {key.name: key for key in ApiKey.objects.filter(tenant=tenant, name__in=dict(KEYS))}
    return [found[name] for name, _ in KEYS if name in found]


def _prepare(tenants: Sequence[Tenant], base_model: BaseModel) -> None:
    for tenant in tenants:
        for name, _ in KEYS:
            if not ApiKey.objects.filter(tenant=tenant, name=name).exists():
                # Nobody learns its text: the key only names the usage.
                api_key_create(tenant=tenant, name=name, scopes=[ApiKey.Scope.INFERENCE])
    details_add(tenants)
    adapter, price = f"{tenants[0].pk}/{ADAPTER}", Price.objects.filter(base_model=base_model.name).first()
    book = PriceBook.objects.order_by("pk").first()
    if price is None or book is None or book.prices.filter(adapter=adapter).exists():
        return
    price_set(
        book=book,
        base_model=base_model.name,
        adapter=adapter,
        effective_from=price.effective_from,
        input_nano=price.input_nano * _PRIME,
        cached_input_nano=price.cached_input_nano * _PRIME,
        output_nano=price.output_nano * _PRIME,
    )


class _Usage:
    """Ingests the tenants' events as time goes by."""

    def __init__(self, base_model: BaseModel, canary: Canary, *, first: dt.date, now: dt.datetime) -> None:
        self._canary, self._first, self._last = canary, first, now.date()
        self._from = _time(first)
        self._callers = []
        for plan in TENANTS:
            tenant = Tenant.objects.get(pk=plan.slug)
            keys = [(key.pk, share) for key, (_, share) in zip(sample_keys(tenant), KEYS, strict=True)]
            caller = Caller(plan.slug, base_model.name, _PER_DAY[plan.slug], keys)
            self._callers.append((caller, _named(tenant, base_model)))

    def add_until(self, moment: dt.datetime) -> None:
        """Ingest the events from the last call's moment to this one."""
        start, end = (round(each.timestamp() * 1000) for each in (self._from, moment))
        found = (event for event in self._events(moment) if start <= event.started_at < end)
        usage_ingest(
            entries=[StreamEntry(f"{event.started_at}-0", event.to_json().encode()) for event in found]
        )
        self._from = moment

    def _events(self, moment: dt.datetime) -> Iterator[UsageEvent]:
        """Yield the events of whole days up to that of `moment`."""
        for caller, models in self._callers:
            current = self._models(models)
            for ahead in range((moment.date() - self._from.date()).days + 1):
                day = self._from.date() + dt.timedelta(days=ahead)
                yield from events(caller, current, day=day, first=self._first, last=self._last)

    def _models(self, models: Sequence[Model]) -> list[Model]:
        """Replace the sample adapter by its current versions, with the share of each."""
        found = list[Model]()
        for model in models:
            if model.alias:
                for name, arm, share in self._canary.arms():
                    found.append(replace(model, engine_name=name, arm=arm, share=model.share * share))
            else:
                found.append(model)
        return found


def _named(tenant: Tenant, base_model: BaseModel) -> list[Model]:
    """Return the tenant's models with engine names, without adapters that it does not have."""
    found = []
    for model in _MODELS[tenant.pk]:
        if model.alias:
            found.append(model)
        elif not model.name:
            found.append(replace(model, name=base_model.name))
        elif (adapter := adapter_find(tenant=tenant, name=model.name)) is not None:
            found.append(replace(model, engine_name=version_get(adapter=adapter, number=1).engine_name))
    return found


def _time(day: dt.date, hour: int = 0) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(hour), dt.UTC)
