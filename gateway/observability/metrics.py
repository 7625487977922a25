"""Counters of requests and attempts, and gauges of the process's current state."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from contracts.usage_event import UsageEvent
from gateway.observability import families as f
from gateway.observability.adapters import AdapterFigures
from gateway.observability.cells import FILE, CellFile
from gateway.observability.figures import Counter, Gauges, Histogram, Mirror, label_text
from gateway.observability.request_trace import RequestTrace

_MODELS: Final = 256
"""Most base models with their own series: operators may have registered many."""
_SETTLE_SECONDS: Final = 10.0


class State(Protocol):
    """The parts of the gateway that are read at each heartbeat."""

    def gauges(self) -> Iterable[tuple[f.Family, dict[str, str], float]]:
        """Yield each gauge with its labels."""

    def totals(self) -> Iterable[tuple[f.Family, dict[str, str], int]]:
        """Yield counters that other parts keep, since this process began."""


class ModelFigures:
    """Metrics of one base model."""

    __slots__ = ("cached", "completion", "itl", "prompt", "ttft")

    def __init__(self, file: CellFile, model: str) -> None:
        self.ttft = Histogram(file, f.TTFT, model=model)
        self.itl = Histogram(file, f.ITL, model=model)
        self.prompt = Counter(file, f.TOKENS, model=model, kind="prompt")
        self.cached = Counter(file, f.TOKENS, model=model, kind="cached")
        self.completion = Counter(file, f.TOKENS, model=model, kind="completion")


class Metrics:
    """This process's metrics. All methods are for the event loop's thread."""

    def __init__(self, folder: Path, *, adapters: int) -> None:
        """Continue the counts in `folder`, the process's log slot.

        Raises:
            OSError: there is no room for the file.
        """
        self._file = CellFile(folder / FILE, f.SCHEMA)
        self._gauges = Gauges(self._file)
        self._adapters = AdapterFigures(self._file, adapters)
        self._requests: dict[tuple[str, str, int, str], Counter] = {}
        self._timings: dict[tuple[str, str], tuple[Histogram, Histogram, Histogram]] = {}
        self._counters: dict[tuple[f.Family, str], Counter] = {}
        self._mirrors: dict[tuple[f.Family, str], Mirror] = {}
        self._models: dict[str, ModelFigures] = {}
        self._labels: set[str] = set()
        self._settled = time.monotonic()
        self._lag = 0.0
        self._started = time.time()
        self.in_flight = 0

    def model(self, base: str) -> ModelFigures:
        figures = self._models.get(base)
        if figures is None:
            figures = self._models[base] = ModelFigures(self._file, self._label(base))
        return figures

    def request(self, trace: RequestTrace, seconds: float) -> None:
        """Count a request at its end."""
        base = self._label(trace.base)
        key = (trace.endpoint, base, trace.status, trace.outcome)
        counter = self._requests.get(key)
        if counter is None:
            labels = {"endpoint": key[0], "model": base, "status": str(key[2]), "outcome": key[3]}
            counter = self._requests[key] = Counter(self._file, f.REQUESTS, **labels)
        counter.add()
        if trace.code:
            self._count(f.ERRORS, "code", trace.code)
        if trace.limit:
            self._count(f.REFUSED, "limit", trace.limit)
        if trace.queued is None:
            # The request was refused before admission; its times would distort those of served requests.
            return
        timings = self._timings.get((trace.endpoint, base))
        if timings is None:
            labels = {"endpoint": trace.endpoint, "model": base}
            timings = self._timings[trace.endpoint, base] = (
                Histogram(self._file, f.DURATION, **labels),
                Histogram(self._file, f.OVERHEAD, **labels),
                Histogram(self._file, f.QUEUE, **labels),
            )
        duration, overhead, queue = timings
        duration.observe(seconds)
        overhead.observe(trace.own)
        queue.observe(trace.queued)

    def attempt(self, event: UsageEvent) -> None:
        """Count an attempt at its end."""
        model = self.model(event.base_model)
        model.prompt.add(event.prompt_tokens)
        model.cached.add(event.cached_tokens)
        model.completion.add(event.completion_tokens)
        if event.ttft_ms is not None:
            model.ttft.observe(event.ttft_ms / 1000)
        if event.adapter and event.status not in ("client_error", "cancelled"):
            self._adapters.record(
                event.adapter,
                ok=event.status == "ok",
                prompt=event.prompt_tokens,
                cached=event.cached_tokens,
                completion=event.completion_tokens,
                ttft_ms=event.ttft_ms,
            )

    def publish(self, state: State, *, lag: float | None = None) -> None:
        """Publish the current state; without a call every few seconds the process counts as gone."""
        now = time.monotonic()
        if now - self._settled >= _SETTLE_SECONDS:
            self._settled = now
            self._adapters.settle()
        for family, labels, total in state.totals():
            key = (family, label_text(labels))
            if (mirror := self._mirrors.get(key)) is None:
                mirror = self._mirrors[key] = Mirror(self._file, family, **labels)
            mirror.follow(total)
        refused = self._mirrors.setdefault((f.SERIES_REFUSED, ""), Mirror(self._file, f.SERIES_REFUSED))
        refused.follow(self._file.refused)
        gauges = {(family, label_text(labels)): value for family, labels, value in state.gauges()}
        gauges[f.IN_FLIGHT, ""] = self.in_flight
        gauges[f.STARTED, ""] = self._started
        gauges[f.TRACKED, ""] = self._adapters.named
        self._lag = self._lag if lag is None else lag
        gauges[f.LAG, ""] = self._lag
        self._gauges.set_all(gauges)
        self._file.heartbeat()

    def end(self) -> None:
        """Note that the process is ending, so its gauges are void."""
        self._file.end()

    def _count(self, family: f.Family, label: str, value: str) -> None:
        counter = self._counters.get((family, value))
        if counter is None:
            counter = self._counters[family, value] = Counter(self._file, family, **{label: value})
        counter.add()

    def _label(self, base: str) -> str:
        if base not in self._labels:
            if len(self._labels) >= _MODELS:
                return f.OTHERS
            self._labels.add(base)
        return base
