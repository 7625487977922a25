"""Rows of the request log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import adapter_name
from controlplane.billing.request_costs import request_nano
from controlplane.metering.models import UsageEventRow
from controlplane.tenants.selectors import api_key_names

_TONES = {"ok": "ok", "error": "danger", "client_error": "warn", "interrupted": "warn"}


@dataclass(frozen=True, slots=True)
class RequestRow:
    """An attempt. `version` is 0 for the base model, `key_name` '' after the key's removal."""

    event: UsageEventRow
    at: dt.datetime
    adapter: str
    version: int
    key_name: str
    nano: int | None

    @property
    def tone(self) -> str:
        """Tone of the status's badge."""
        return _TONES.get(self.event.status, "neutral")


def request_rows(*, tenant: str, events: Iterable[UsageEventRow], prices: PriceList) -> list[RequestRow]:
    """Return rows with each attempt's cost and its key's name; one query."""
    rows = list(events)
    names = api_key_names(tenant=tenant, public_ids=[row.key_id for row in rows])
    return [
        RequestRow(
            row,
            dt.datetime.fromtimestamp(row.started_at / 1000, dt.UTC),
            adapter_name(row.adapter),
            _version(row.adapter),
            names.get(row.key_id, ""),
            request_nano(row, prices),
        )
        for row in rows
    ]


def _version(engine_name: str) -> int:
    try:
        return EngineName.parse(engine_name).version if engine_name else 0
    except ContractError:
        return 0
