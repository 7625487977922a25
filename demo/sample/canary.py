"""The sample adapter: two versions behind an alias, the second promoted by a canary rollout."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from django.db.models import QuerySet

from contracts.adapters.reference import ADAPTER_FILES
from controlplane.adapters.aliases import alias_move
from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.adapters.selectors import adapter_find, alias_get
from controlplane.adapters.services import adapter_register
from controlplane.canaries.decisions import rollout_decide
from controlplane.canaries.models import Rollout
from controlplane.canaries.services import rollout_promote, rollout_start
from controlplane.catalog.models import BaseModel
from controlplane.errors import NotFoundError
from controlplane.tenants.models import Tenant
from demo.effects import ADAPTERS
from demo.sample.clock import as_of

ADAPTER: Final = "support-bot-sample"
ALIAS: Final = "prod"
_VERSIONS: Final = ("support-triage", "strict-json")
"""Committed adapter whose files are version 1, and version 2."""
_LASTS: Final = dt.timedelta(days=10)
"""From the start of the rollout to its latest end."""
_VALIDATION_S: Final = 120.0


class Canary:
    """The versions and the rollout, from `starts` to `ends_by` at the latest."""

    def __init__(self, *, tenant: Tenant, base_model: BaseModel, ends_by: dt.datetime) -> None:
        self._tenant, self._base_model = tenant, base_model
        self.starts, self.ends_by = ends_by - _LASTS, ends_by

    def register(self, moment: dt.datetime) -> None:
        """Register both versions, the first at `moment`, and wait until they are validated."""
        for number, effect in enumerate(_VERSIONS, start=1):
            registered = moment if number == 1 else self.starts - dt.timedelta(hours=2)
            if not self._versions().filter(number=number).exists():
                with as_of(registered):
                    self._register(effect)
        self._wait_ready()
        if not Alias.objects.filter(adapter=self._adapter(), name=ALIAS).exists():
            with as_of(moment):
                alias_move(adapter=self._adapter(), name=ALIAS, number=1, reason="first version")

    def steps(self) -> list[tuple[dt.datetime, Callable[[], object]]]:
        """Return the rollout's changes: its start, one decision a day, and its promotion at the latest."""
        days = [self.starts + dt.timedelta(days=day) for day in range(1, _LASTS.days)]
        return [
            (self.starts, self._start),
            *((moment, self._decide) for moment in days),
            (self.ends_by, self._promote),
        ]

    def arms(self) -> list[tuple[str, str, float]]:
        """Return engine name, arm ("" without a split) and share of each version that the alias names."""
        alias = alias_get(adapter=self._adapter(), name=ALIAS)
        arms = [(arm.version, arm.percent) for arm in alias.arms.select_related("version__adapter")]
        if not arms:
            return [(alias.version.engine_name, "", 1.0)]
        return [(version.engine_name, f"v{version.number}", percent / 100) for version, percent in arms]

    def _start(self) -> None:
        if self._rollout() is None:
            rollout_start(
                adapter=self._adapter(),
                alias=ALIAS,
                version=2,
                steps=(25, 50),
                hold_seconds=86_400,
                min_requests=40,
                max_error_increase=0.1,
                max_latency_ratio=3.0,
            )

    def _decide(self) -> None:
        if (rollout := self._rollout()) is not None and rollout.is_active:
            rollout_decide(rollout=rollout)

    def _promote(self) -> None:
        if (rollout := self._rollout()) is not None and rollout.is_active:
            rollout_promote(rollout=rollout)

    def _rollout(self) -> Rollout | None:
        rows = Rollout.objects.select_related("adapter", "stable__adapter", "canary__adapter")
        return rows.filter(adapter=self._adapter(), alias=ALIAS).first()

    def _register(self, effect: str) -> None:
        with ExitStack() as stack:
            folder = ADAPTERS / effect
            files = {name: stack.enter_context((folder / name).open("rb")) for name in ADAPTER_FILES}
            adapter_register(
                tenant=self._tenant,
                name=ADAPTER,
                base_model=self._base_model,
                files=files,
                lineage={"dataset": f"{effect} answers (sample)", "notes": "Sample data of the demo."},
                make_default=True,
            )

    def _wait_ready(self) -> None:
        """Wait for Celery's validation. Raises NotFoundError if a version does not get ready."""
        deadline = time.monotonic() + _VALIDATION_S
        while waiting := self._versions().exclude(status=AdapterVersion.Status.READY):
            refused = waiting.filter(status=AdapterVersion.Status.REFUSED).first()
            if refused is not None or time.monotonic() > deadline:
                reason = refused.reason if refused else f"its validation takes over {_VALIDATION_S:.0f} s"
                raise NotFoundError(f"the sample adapter is not ready: {reason}")
            time.sleep(0.25)

    def _versions(self) -> QuerySet[AdapterVersion]:
        return AdapterVersion.objects.filter(adapter__tenant=self._tenant, adapter__name=ADAPTER)

    def _adapter(self) -> Adapter:
        adapter = adapter_find(tenant=self._tenant, name=ADAPTER)
        if adapter is None:
            raise NotFoundError(f"{self._tenant} has no adapter {ADAPTER}")
        return adapter
