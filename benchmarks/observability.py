"""CPU cost of metrics and logs per request and per streamed event on the gateway's event loop.

Thread CPU time, so that other work on the machine does not count; medians of rounds. The baseline is
prometheus_client in its multiprocess mode, with as many increments and observations on cached children.
"""

from __future__ import annotations

import logging.config
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.figure import Figure, compared
from contracts.usage_event import UsageEvent
from gateway.observability import Observer
from gateway.observability.logs import configuration
from gateway.observability.metrics import Metrics
from gateway.usage.metering import Attempt

ROUNDS: Final = 9
TIMES: Final = 20_000
REQUEST_GOAL_US: Final = 10.0
EVENT_GOAL_US: Final = 0.5
_PATH: Final = "/v1/chat/completions"
_SCOPE: Final = {"type": "http", "path": _PATH, "method": "POST", "headers": []}
_EVENT: Final = UsageEvent(
    event_id="e",
    tenant="acme",
    project="",
    key_id="k1",
    request_id="r",
    attempt=1,
    requested_model="bot",
    alias="",
    arm="",
    adapter="t_acme.a_bot.v1.0123456789ab",
    base_model="base",
    operation="chat",
    backend="worker",
    endpoint="c",
    status="ok",
    error_code="",
    prompt_tokens=11,
    cached_tokens=5,
    completion_tokens=64,
    reasoning_tokens=0,
    images=0,
    estimated=False,
    ttft_ms=95.1,
    itl_ms=11.4,
    duration_ms=812.4,
    started_at=1,
    gateway_id="g",
)


def run() -> Iterator[Figure]:
    """Measure and yield the figures."""
    with tempfile.TemporaryDirectory() as folder:
        observer = _observer(Path(folder), access_log=False)
        peer_request, peer_event = _peer(Path(folder))
        own = _median(lambda: _requests(observer))
        note = f"1 attempt with an adapter; goal: below {REQUEST_GOAL_US:g} us"
        yield compared(
            "observability", "CPU of metrics a request", own, "us", baseline=peer_request, note=note
        )
        own = _median(lambda: _events(observer))
        note = f"2 clocks, time between tokens; goal: below {EVENT_GOAL_US:g} us"
        metric = "CPU of metrics a streamed event"
        yield compared("observability", metric, own, "us", baseline=peer_event, note=note)
        line = round(_access(Path(folder)), 2)
        yield Figure("observability", "CPU of an access log line", line, "us", note="JSON, to /dev/null")


def _observer(folder: Path, *, access_log: bool) -> Observer:
    metrics = Metrics(folder, adapters=50)
    return Observer(metrics, [_PATH], tracing=None, access_log=access_log)


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(ROUNDS))


def _requests(observer: Observer) -> float:
    """Return microseconds of all observer calls for one request, without its events."""
    began = time.thread_time()
    for _ in range(TIMES):
        trace = observer.begin(_SCOPE, "r")
        trace.pause()
        trace.resume()
        trace.record_queue_time(0.0)
        observer.attempt_begins(trace, "base", "c", "worker", 1)
        observer.metrics.model("base")
        trace.pause()
        trace.resume()
        observer.attempt(trace, _EVENT, None)
        trace.pause()
        observer.end(trace)
    return (time.thread_time() - began) / TIMES * 1e6


class _Meterless(Attempt):
    """An attempt without a meter."""

    def __init__(self, observer: Observer) -> None:
        self._ttft: float | None = 1.0
        self._tokens, self._last = 0, perf_counter()
        self._itl = observer.metrics.model("base").itl


def _events(observer: Observer) -> float:
    """Return microseconds per one-token event, minus the empty loop."""
    attempt, trace = _Meterless(observer), observer.begin(_SCOPE, "r")
    began = time.thread_time()
    for number in range(1, TIMES + 1):
        now = perf_counter()
        attempt.has(number, now)
        trace.own += perf_counter() - now
    spent = time.thread_time() - began
    began = time.thread_time()
    for _ in range(1, TIMES + 1):
        pass
    return (spent - (time.thread_time() - began)) / TIMES * 1e6


def _access(folder: Path) -> float:
    logging.config.dictConfig(configuration("json", "INFO"))
    with Path(os.devnull).open("w") as nowhere:
        handler = logging.getLogger().handlers[0]
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(nowhere)
        (folder / "a").mkdir()
        quiet = _observer(folder, access_log=False)
        loud = _observer(folder / "a", access_log=True)
        return _median(lambda: _requests(loud)) - _median(lambda: _requests(quiet))


_PEER: Final = """
import statistics, time
from prometheus_client import Counter, Histogram
counters = [Counter(f"c{n}", "", ["a", "b"]).labels("x", "y") for n in range(11)]
bounds = [0.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300]
histograms = [Histogram(f"h{n}", "", ["a", "b"], buckets=bounds).labels("x", "y") for n in range(5)]
TIMES = 5000
def request():
    for counter in counters: counter.inc()
    for histogram in histograms[:4]: histogram.observe(0.3)
def event():
    histograms[4].observe(0.03)
for work in (request, event):
    spent = []
    for _ in range(9):
        began = time.thread_time()
        for _ in range(TIMES): work()
        spent.append((time.thread_time() - began) / TIMES * 1e6)
    print(statistics.median(spent))
"""


def _peer(folder: Path) -> tuple[float, float]:
    """Return (per request, per event) for prometheus_client: 11 increments and 4 observations, and one."""
    (folder / "peer").mkdir()
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder / "peer")}
    done = subprocess.run(
        [sys.executable, "-c", _PEER], env=environ, capture_output=True, text=True, check=True
    )
    request, event = map(float, done.stdout.split())
    return request, event
