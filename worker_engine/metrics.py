"""The worker's metrics for Prometheus, read from the engine's counters when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kernels import tuned
from worker_engine.kernel_choice import TRITON
from worker_engine.service import Service

PREFIX: Final = "graftwork_worker_"
MAX_TENANTS: Final = 20
"""Tenants with series of their own, those with the most requests; the others are summed up."""
OTHERS: Final = "_others"
"""No tenant's name: those begin with a letter or a digit."""


def render(service: Service) -> str:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(WorkerCollector(service)).decode()


class WorkerCollector(Collector):
    """Reads the counters without a lock: each is one object that the engine's thread replaces."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        for families in (
            _single,
            _startup,
            _kernels,
            _tenants,
            _adapters,
            _merging,
            _latencies,
            _speculation,
        ):
            yield from families(self._service)


def _single(service: Service) -> Iterator[Metric]:
    engine, scheduler, pool = service.engine, service.engine.scheduler, service.engine.pool
    running, adapter_pages = len(scheduler.running), scheduler.adapters.num_active_pages
    waiting, prefixes, limits = max(0, service.num_pending - running), scheduler.prefixes, service.limits
    for kind, name, text, value in (
        (Gauge, "up", "1 while requests are taken.", int(service.healthy)),
        (Counter, "engine_restarts_total", "Engines started for broken ones.", service.num_restarts),
        (Counter, "generated_tokens_total", "Tokens sampled.", engine.num_generated_tokens),
        (Counter, "prompt_tokens_total", "Prompt tokens computed.", engine.num_prompt_tokens),
        (Counter, "prefix_queried_tokens_total", "Prompt tokens looked up.", prefixes.num_queried_tokens),
        (Counter, "prefix_hit_tokens_total", "Prompt tokens that were.", prefixes.num_hit_tokens),
        (Counter, "preemptions_total", "Sequences set back to wait.", scheduler.num_preemptions),
        (Counter, "refused_total", "Requests that met a full queue.", limits.num_refused),
        (Counter, "timeouts_total", "Requests whose time limit passed in the engine.", engine.num_timeouts),
        (Gauge, "requests_running", "Sequences in the batch.", running),
        (Gauge, "requests_waiting", "Requests accepted, not running.", waiting),
        (
            Counter,
            "request_seconds_total",
            "Time of requests here: its rate is how many at a time.",
            limits.request_seconds,
        ),
        (Gauge, "uptime_seconds", "Since this process takes requests.", limits.age),
        (Gauge, "kv_pages_used", "Pages held by sequences.", max(0, pool.num_used - adapter_pages)),
        (Gauge, "kv_pages_cached", "Pages parked: cached prefixes and unused adapters.", pool.num_idle),
        (Gauge, "kv_pages_total", "Pages there are, for KV and adapters.", pool.capacity),
        (Gauge, "adapter_pages", "Pages of the batch's adapters.", adapter_pages),
    ):
        yield kind(PREFIX + name, text, value)


def _by_label(
    kind: type[Counter] | type[Gauge], name: str, text: str, label: str, values: Mapping[str, float]
) -> Metric:
    metric = kind(PREFIX + name, text, labels=[label])
    for value, number in values.items():
        metric.add_metric([value], number)
    return metric


def _startup(service: Service) -> Iterator[Metric]:
    phases = dict(service.startup.seconds)
    if service.startup.first_token is not None:
        phases["first_token"] = service.startup.first_token
    yield _by_label(
        Gauge, "startup_seconds", "What each phase of this process's start took.", "phase", phases
    )


def _kernels(service: Service) -> Iterator[Metric]:
    states: dict[str, float] = {op: int(state == TRITON) for op, state in service.engine.kernels.items()}
    text = "1 where an op runs its Triton kernels, 0 for PyTorch's."
    yield _by_label(Gauge, "kernel_triton", text, "op", states)
    files = dict.fromkeys(tuned.loaded_files(), 1.0)
    yield _by_label(Gauge, "tuned_config", "1 for each file of tuned configurations in use.", "file", files)


def _tenants(service: Service) -> Iterator[Metric]:
    accounts = [account for account in list(service.engine.scheduler.accounts) if account.active]
    counts = {account.tenant: (account.num_running, account.num_waiting) for account in accounts}
    shown = nlargest(MAX_TENANTS, counts, key=lambda tenant: sum(counts[tenant]))
    others = [count for tenant, count in counts.items() if tenant not in shown]
    for state, (name, text) in enumerate(
        (("running", "Sequences in the batch."), ("waiting", "Sequences that wait."))
    ):
        values = {tenant: counts[tenant][state] for tenant in shown}
        if others:
            values[OTHERS] = sum(count[state] for count in others)
        yield _by_label(Gauge, f"tenant_requests_{name}", f"{text} By tenant.", "tenant", values)


def _adapters(service: Service) -> Iterator[Metric]:
    pool, memory = service.adapters, service.engine.scheduler.adapters
    yield _by_label(
        Gauge,
        "adapters_resident",
        "Adapters by tier: host memory, and pages of the engine's pool.",
        "tier",
        {"host": pool.num_resident, "batch": memory.num_resident},
    )
    yield Gauge(f"{PREFIX}adapter_bytes", "Host memory of adapters.", pool.nbytes)
    text = "Requests with an adapter, by the tier that it was found in."
    yield _by_label(Counter, "adapter_requests_total", text, "tier", pool.found)
    text = "Adapters whose files the disk cache could not take."
    yield Counter(f"{PREFIX}adapter_cache_failures_total", text, pool.num_unkept)
    loads = dict(pool.load_seconds)
    if (device := memory.tier) is not None:
        loads["host"] = device.load_seconds
        yield Counter(f"{PREFIX}adapter_device_bytes_total", "Copied from host memory.", device.num_bytes)
    text = "From a tier to the next: disk and store to host memory, that to the device."
    metric = HistogramMetricFamily(f"{PREFIX}adapter_load_seconds", text, labels=["tier"])
    for tier, seconds in loads.items():
        metric.add_metric([tier], seconds.buckets(), seconds.total)
    yield metric


def _merging(service: Service) -> Iterator[Metric]:
    """Nothing unless `--merge-adapter` is on."""
    merged = service.engine.merged
    if merged is None:
        return
    counts, timings, adapter = merged.counts, merged.timings, merged.adapter
    layers = {} if adapter is None else {adapter.sha256[:12]: float(merged.progress[0])}
    text = "Layers that hold an adapter's merged weights, by its digest; none while nothing is merged."
    yield _by_label(Gauge, "merged_layers", text, "adapter", layers)
    yield Gauge(f"{PREFIX}merged_bytes", "Memory of merged weights.", merged.nbytes)
    text = "Unix time at which the last layer was merged; 0 while not all are."
    yield Gauge(f"{PREFIX}merged_since_seconds", text, merged.completed_at)
    events = {"begun": counts.begun, "completed": counts.completed, "dropped": counts.dropped}
    yield _by_label(Counter, "merges_total", "Merges of an adapter, by event.", "event", events)
    yield Counter(f"{PREFIX}merge_seconds_total", "Time spent merging layers.", counts.seconds)
    yield Counter(f"{PREFIX}merged_steps_total", "Steps computed with merged weights.", counts.steps)
    kinds = {"merged": timings.merged, "base": timings.base}
    for name, text, values in (
        ("steps", "Decode steps with one adapter for all rows.", {k: t.steps for k, t in kinds.items()}),
        ("rows", "Rows of those steps.", {k: t.rows for k, t in kinds.items()}),
        ("seconds", "Time of those steps, launch to launch.", {k: t.seconds for k, t in kinds.items()}),
    ):
        yield _by_label(Counter, f"one_adapter_{name}_total", f"{text} By weights.", "weights", values)


def _latencies(service: Service) -> Iterator[Metric]:
    latencies = service.engine.latencies
    for name, text, seconds in (
        ("queue_seconds", "From arrival to the batch.", latencies.queue),
        ("ttft_seconds", "From arrival to the first token.", latencies.ttft),
        ("itl_seconds", "From one token of a request to its next.", latencies.itl),
    ):
        yield HistogramMetricFamily(PREFIX + name, text, seconds.buckets(), seconds.total)


def _speculation(service: Service) -> Iterator[Metric]:
    speculator = service.engine.speculator
    if speculator is None:
        return
    counts = speculator.counts.by_adapter()
    for index, name, text in (
        (0, "proposed", "Guessed tokens that were verified."),
        (1, "accepted", "Guessed tokens that were right."),
    ):
        values = {adapter: count[index] for adapter, count in counts.items()}
        yield _by_label(Counter, f"speculation_{name}_tokens_total", f"{text} By adapter.", "adapter", values)
    text = "Guesses verified a token, lately."
    yield Gauge(f"{PREFIX}speculation_length", text, speculator.counts.length)
