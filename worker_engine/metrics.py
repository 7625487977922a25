"""The worker's figures in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from typing import Final

from worker_engine.fairness import Account
from worker_engine.kernel_choice import TRITON
from worker_engine.service import Service

PREFIX: Final = "graftwork_worker_"
MAX_TENANTS: Final = 20
"""Tenants with figures of their own, those with the most requests; the rest are summed up."""
OTHERS: Final = "_others"
"""No tenant's name: those begin with a letter or a digit."""


def render(service: Service) -> str:
    """All figures, read without a lock: each is one object that the engine's thread replaces."""
    rooms = (_single, _startup, _kernels, _tenants, _adapters, _latencies, _speculation)
    return "".join(family for room in rooms for family in room(service))


def _single(service: Service) -> Iterator[str]:
    engine, scheduler, pool = service.engine, service.engine.scheduler, service.engine.pool
    running, adapter_pages = len(scheduler.running), scheduler.adapters.num_active_pages
    waiting, prefixes = max(0, service.num_pending - running), scheduler.prefixes
    for name, kind, text, value in (
        ("up", "gauge", "1 while requests are taken.", int(service.healthy)),
        ("engine_restarts_total", "counter", "Engines started for broken ones.", service.num_restarts),
        ("generated_tokens_total", "counter", "Tokens sampled.", engine.num_generated_tokens),
        ("prompt_tokens_total", "counter", "Prompt tokens computed.", engine.num_prompt_tokens),
        ("prefix_queried_tokens_total", "counter", "Prompt tokens looked up.", prefixes.num_queried_tokens),
        ("prefix_hit_tokens_total", "counter", "Prompt tokens that were.", prefixes.num_hit_tokens),
        ("preemptions_total", "counter", "Sequences set back to wait.", scheduler.num_preemptions),
        ("refused_total", "counter", "Requests that met a full queue.", service.limits.num_refused),
        ("timeouts_total", "counter", "Requests whose time limit passed in the engine.", engine.num_timeouts),
        ("requests_running", "gauge", "Sequences in the batch.", running),
        ("requests_waiting", "gauge", "Requests accepted, not running.", waiting),
        ("request_seconds_total", "counter", "Time of requests here: its rate is how many at a time.",
         f"{service.limits.request_seconds:.6f}"),
        ("uptime_seconds", "gauge", "Since this process takes requests.", f"{service.limits.age:.3f}"),
        ("kv_pages_used", "gauge", "Pages held by sequences.", max(0, pool.num_used - adapter_pages)),
        ("kv_pages_cached", "gauge", "Pages parked: cached prefixes and unused adapters.", pool.num_idle),
        ("kv_pages_total", "gauge", "Pages there are, for KV and adapters.", pool.capacity),
        ("adapter_pages", "gauge", "Pages of the batch's adapters.", adapter_pages),
    ):  # fmt: skip
        yield _family(name, kind, text, [f"{PREFIX}{name} {value}"])


def _startup(service: Service) -> Iterator[str]:
    startup, name = service.startup, "startup_seconds"
    phases = dict(startup.seconds)
    if startup.first_token is not None:
        phases["first_token"] = startup.first_token
    lines = [f'{PREFIX}{name}{{phase="{phase}"}} {seconds:.6f}' for phase, seconds in phases.items()]
    yield _family(name, "gauge", "What each phase of this process's start took.", lines)


def _kernels(service: Service) -> Iterator[str]:
    lines = [
        f'{PREFIX}kernel_triton{{op="{op}"}} {int(state == TRITON)}'
        for op, state in service.engine.kernels.items()
    ]
    yield _family("kernel_triton", "gauge", "1 where an op runs its Triton kernels, 0 for PyTorch's.", lines)


def _tenants(service: Service) -> Iterator[str]:
    accounts = [account for account in list(service.engine.scheduler.accounts) if account.active]
    shown = nlargest(MAX_TENANTS, accounts, key=lambda account: account.num_running + account.num_waiting)
    rest = [account for account in accounts if account not in shown]
    for name, text in (("running", "Sequences in the batch."), ("waiting", "Sequences that wait.")):
        metric = f"tenant_requests_{name}"
        lines = [_tenant_line(metric, account.tenant, _count(account, name)) for account in shown]
        if rest:
            lines.append(_tenant_line(metric, OTHERS, sum(_count(account, name) for account in rest)))
        yield _family(metric, "gauge", f"{text} By tenant.", lines)


def _count(account: Account, state: str) -> int:
    return account.num_running if state == "running" else account.num_waiting


def _tenant_line(metric: str, tenant: str, value: int) -> str:
    return f'{PREFIX}{metric}{{tenant="{escape(tenant)}"}} {value}'


def escape(value: str) -> str:
    """A label's value."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _adapters(service: Service) -> Iterator[str]:
    pool, memory = service.adapters, service.engine.scheduler.adapters
    yield _family(
        "adapters_resident", "gauge", "Adapters by tier: host memory, and pages of the engine's pool.",
        [f'{PREFIX}adapters_resident{{tier="host"}} {pool.num_resident}',
         f'{PREFIX}adapters_resident{{tier="batch"}} {memory.num_resident}'],
    )  # fmt: skip
    yield _family(
        "adapter_bytes", "gauge", "Host memory of adapters.", [f"{PREFIX}adapter_bytes {pool.nbytes}"]
    )
    yield _family(
        "adapter_requests_total", "counter", "Requests with an adapter, by the tier that it was found in.",
        [f'{PREFIX}adapter_requests_total{{tier="{tier}"}} {count}' for tier, count in pool.found.items()],
    )  # fmt: skip
    unkept = f"{PREFIX}adapter_cache_failures_total {pool.num_unkept}"
    text = "Adapters whose files the disk cache could not take."
    yield _family("adapter_cache_failures_total", "counter", text, [unkept])
    name = f"{PREFIX}adapter_load_seconds"
    loads = dict(pool.load_seconds)
    if (device := memory.tier) is not None:
        loads["host"] = device.load_seconds
        copied = f"{PREFIX}adapter_device_bytes_total {device.num_bytes}"
        yield _family("adapter_device_bytes_total", "counter", "Copied from host memory.", [copied])
    lines = [line for tier, times in loads.items() for line in times.lines(name, f'tier="{tier}"')]
    text = "From a tier to the next: disk and store to host memory, that to the device."
    yield _family("adapter_load_seconds", "histogram", text, lines)


def _latencies(service: Service) -> Iterator[str]:
    latencies = service.engine.latencies
    for name, text, histogram in (
        ("queue_seconds", "From arrival to the batch.", latencies.queue),
        ("ttft_seconds", "From arrival to the first token.", latencies.ttft),
        ("itl_seconds", "From one token of a request to its next.", latencies.itl),
    ):
        yield _family(name, "histogram", text, histogram.lines(PREFIX + name))


def _speculation(service: Service) -> Iterator[str]:
    speculator = service.engine.speculator
    if speculator is None:
        return
    counts = speculator.counts.by_adapter()
    for place, name, text in (
        (0, "proposed", "Guessed tokens that were verified."),
        (1, "accepted", "Guessed tokens that were right."),
    ):
        metric = f"speculation_{name}_tokens_total"
        lines = [
            f'{PREFIX}{metric}{{adapter="{escape(adapter)}"}} {count[place]}'
            for adapter, count in counts.items()
        ]
        yield _family(metric, "counter", f"{text} By adapter.", lines)
    length = f"{PREFIX}speculation_length {speculator.counts.length:.6f}"
    yield _family("speculation_length", "gauge", "Guesses verified a token, lately.", [length])


def _family(name: str, kind: str, text: str, lines: list[str]) -> str:
    return "\n".join([f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}", *lines, ""])
