"""Requests of a real trace over many adapters: arrivals, lengths, and adapters by a seeded Zipf draw."""

from __future__ import annotations

import csv
import datetime as dt
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from benchmarks.processes import ROOT
from contracts.adapters.reference import AdapterRef, EngineName, adapter_digest, engine_name
from contracts.recipes.trace_rows import TracedRequest, read_rows

TRACE: Final = "azure_llm_trace_2023_conv.csv"
"""The conversation service of the Azure LLM inference trace 2023 (Azure Public Dataset, CC BY 4.0)."""
SHORT_TRACE: Final = ROOT / "optimizer" / "measurement" / "data" / "conversation_arrivals.csv"
"""Its first 512 requests, which are in the repository."""
TENANT: Final = "bench"
EXPONENT: Final = 1.0
"""Of the Zipf draw of adapters, since the trace names no models: of 5,000 the first gets 11% of the requests,
the first 100 get 57%."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `at` is seconds from the beginning."""

    at: float
    adapter: AdapterRef
    prompt: int
    answer: int


def trace() -> tuple[list[TracedRequest], str]:
    """Return the trace and its name.

    The whole trace is looked for in GRAFTWORK_TEST_TRACES or var/traces; else it is the committed beginning.
    """
    given = os.environ.get("GRAFTWORK_TEST_TRACES")
    folders = [Path(given)] if given else [ROOT / "var" / "traces", ROOT.parent / "shared" / "data"]
    for folder in folders:
        if (path := folder / TRACE).exists():
            return _whole(path), TRACE
    with SHORT_TRACE.open() as lines:
        return read_rows(lines, SHORT_TRACE.name, arrivals=True), SHORT_TRACE.name


def _whole(path: Path) -> list[TracedRequest]:
    found: list[TracedRequest] = []
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            at = dt.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            found.append(TracedRequest(int(row["ContextTokens"]), int(row["GeneratedTokens"]), at))
    return found


def adapters(number: int) -> list[AdapterRef]:
    """Return references of distinct adapters, the most used first."""
    return [_adapter(index) for index in range(number)]


def _adapter(index: int) -> AdapterRef:
    digest = adapter_digest({"adapter_model.safetensors": f"{index:064x}"})
    name = engine_name(tenant=TENANT, adapter=f"bot-{index}", version=1, sha256=digest)
    return AdapterRef(name=name, uri=f"file:///adapters/bot-{index}", sha256=digest, rank=16)


def adapter_name(ref: AdapterRef) -> str:
    """Return the name by which clients call an adapter."""
    return EngineName.parse(ref.name).adapter


def requests(
    rows: Sequence[TracedRequest],
    refs: Sequence[AdapterRef],
    *,
    rate: float,
    number: int,
    exponent: float = EXPONENT,
    seed: int = 7,
) -> Iterator[Request]:
    """Yield `number` requests at `rate` per second in the mean.

    The trace's gaps between arrivals are scaled to the rate, which keeps its bursts, and repeated with its
    lengths when it ends.
    """
    draw = random.Random(seed)
    totals = list(accumulate((rank + 1) ** -exponent for rank in range(len(refs))))
    arrivals = [row.arrival or 0.0 for row in rows]
    span = arrivals[-1] - arrivals[0]
    gap = span / (len(rows) - 1)
    for index, [ref] in enumerate(zip(draw.choices(refs, cum_weights=totals, k=number), strict=True)):
        turn, place = divmod(index, len(rows))
        at = turn * (span + gap) + arrivals[place] - arrivals[0]
        yield Request(at / (gap * rate), ref, rows[place].prompt, rows[place].answer)
