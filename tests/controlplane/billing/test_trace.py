"""Azure's conversation trace over 200 adapters: the invoice equals pandas' sum over the trace."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from contracts.usage_event import UsageEvent
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.services import price_book_create, price_set
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import DeadUsageEvent
from controlplane.metering.services import usage_ingest
from controlplane.tenants.models import Tenant
from tests.conftest import ROOT
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.known import known

pytestmark = pytest.mark.django_db
NAME = "azure_llm_trace_2023_conv.csv"
ADAPTERS = 200
KEYS = 7
BATCH = 500
DEAR = 20
"""Adapters with a price of their own."""


@pytest.fixture
def trace() -> pd.DataFrame:
    """Arrival, prompt and completion tokens, and, by a seeded Zipf draw, whose adapter and key."""
    given = os.environ.get("GRAFTWORK_TEST_TRACES")
    folders = [Path(given)] if given else [ROOT / "var" / "traces", ROOT.parent / "shared" / "data"]
    found = next((folder / NAME for folder in folders if (folder / NAME).exists()), None)
    if found is None:
        pytest.skip(f"no {NAME} (Azure Public Dataset): put it into var/traces or set GRAFTWORK_TEST_TRACES")
    frame = pd.read_csv(found, parse_dates=["TIMESTAMP"])
    draw = np.random.default_rng(7)
    frame["adapter"] = (draw.zipf(1.3, len(frame)) - 1) % ADAPTERS
    frame["key"] = draw.integers(0, KEYS, len(frame))
    frame["cached"] = (frame["ContextTokens"] * draw.random(len(frame))).astype("int64")
    return frame


@pytest.mark.timeout(900)
@pytest.mark.costly("ingests a trace")
def test_the_invoice_of_a_trace_is_what_pandas_says(
    trace: pd.DataFrame, tenant: Tenant, graftwork: Path, settings: Any
) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, usage_keep_days=36_500)
    known("tiny", tenants=())
    book, first = price_book_create(name="standard"), dt.date(2023, 11, 1)
    price_set(
        book=book,
        base_model="tiny",
        effective_from=first,
        input_nano=151,
        cached_input_nano=37,
        output_nano=601,
        request_nano=1009,
    )
    for index in range(DEAR):
        price_set(
            book=book,
            base_model="tiny",
            adapter=f"acme/bot-{index}",
            effective_from=first,
            input_nano=300 + index,
            cached_input_nano=70,
            output_nano=1200 + index,
        )
    events = [_event(number, row) for number, row in enumerate(trace.itertuples(index=False))]
    arrived = int(dt.datetime(2023, 11, 18, tzinfo=dt.UTC).timestamp() * 1000)
    entries = [StreamEntry(f"{arrived}-{n}", event.to_json().encode()) for n, event in enumerate(events)]
    month = dt.date(2023, 11, 1)
    for start in range(0, len(entries), BATCH):
        # Every batch comes with part of the one before once more; the books follow now and then.
        usage_ingest(entries=entries[max(0, start - 50) : start + BATCH])
        if start % (BATCH * 10) == 0:
            usage_post(tenant="acme", start=month, end=dt.date(2023, 11, 30))
    assert not DeadUsageEvent.objects.exists()
    parties_state()
    invoice = invoice_finalize(invoice=invoice_draft(tenant="acme", month=month))
    expected = _expected(trace)
    assert invoice.lines_nano == int(expected["nano"].sum())
    assert expected["adapter"].nunique() > 150
    for by in (["adapter"], ["key"], ["adapter", "key"]):
        wanted = {_names(by, key): int(nano) for key, nano in expected.groupby(by)["nano"].sum().items()}
        found: dict[tuple[str, ...], int] = {}
        for line in invoice.lines.all():
            place = tuple({"adapter": line.adapter, "key": line.key_id}[name] for name in by)
            found[place] = found.get(place, 0) + (line.amount_nano or 0)
        assert found == wanted


def _names(by: list[str], key: Any) -> tuple[str, ...]:
    values = key if isinstance(key, tuple) else (key,)
    return tuple(
        f"{'bot-' if name == 'adapter' else 'k'}{value}" for name, value in zip(by, values, strict=True)
    )


def _expected(trace: pd.DataFrame) -> pd.DataFrame:
    frame = trace.copy()
    own = frame["adapter"] < DEAR
    given = frame["adapter"].astype("int64")
    fresh = frame["ContextTokens"].astype("int64") - frame["cached"]
    output = frame["GeneratedTokens"].astype("int64")
    dear = fresh * (300 + given) + frame["cached"] * 70 + output * (1200 + given)
    frame["nano"] = dear.where(own, fresh * 151 + frame["cached"] * 37 + output * 601 + 1009)
    return frame


def _event(number: int, row: Any) -> UsageEvent:
    stamp = int(row.TIMESTAMP.tz_localize("UTC").timestamp() * 1000)
    adapter = f"t_acme.a_bot-{row.adapter}.v{1 + number % 2}.{'a' * 12}"
    return UsageEvent(
        event_id=str(uuid.UUID(int=(stamp << 80) | (7 << 76) | (2 << 62) | number)),
        tenant="acme",
        project="default",
        key_id=f"k{row.key}",
        request_id=f"r{number}",
        attempt=0,
        requested_model="m",
        alias="",
        arm="",
        adapter=adapter,
        base_model="tiny",
        operation="chat",
        backend="worker",
        endpoint="chat",
        status="ok",
        error_code="",
        prompt_tokens=int(row.ContextTokens),
        cached_tokens=int(row.cached),
        completion_tokens=int(row.GeneratedTokens),
        reasoning_tokens=0,
        images=0,
        estimated=False,
        ttft_ms=None,
        itl_ms=None,
        duration_ms=1.0,
        started_at=stamp,
        gateway_id="g",
    )
