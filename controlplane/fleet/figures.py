"""Parses a copy's figures from its `/metrics`, for the bundled worker and vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from contracts.vllm_metrics import VllmMetrics

_SAMPLE: Final = re.compile(r"^(graftwork_worker_|vllm:)(\w+)(?:\{([^\n]*)\})? (\S+)$", re.M)
_TIER: Final = re.compile(r'tier="(\w+)"')
_FILE: Final = re.compile(r'file="([\w. -]+)"')


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures that a copy reports; None for those that its server does not report.

    Attributes:
        takes_requests: whether it accepts new requests.
        running, waiting: requests in its batch, and requests that wait to join it.
        kv_used, kv_cached, kv_total: pages of the engine's pool; `adapter_pages` are not part of `kv_used`.
        kv_share: used share of the pool, from servers that report no pages.
        adapters: number of adapters in memory by tier (`device`, `host`). vLLM reports those with running
            requests alone, which are on the device.
        adapter_slots: adapters that fit into device memory at once, where the server reports it.
        adapter_bytes: bytes of adapters in host memory.
        tuned_configs: files of tuned kernel configurations that it uses.
    """

    takes_requests: bool = True
    running: int | None = None
    waiting: int | None = None
    kv_used: int | None = None
    kv_cached: int | None = None
    kv_total: int | None = None
    adapter_pages: int | None = None
    kv_share: float | None = None
    adapters: Mapping[str, int] = field(default_factory=dict)
    adapter_bytes: int | None = None
    adapter_slots: int | None = None
    tuned_configs: Sequence[str] = ()

    @property
    def used_share(self) -> float | None:
        """Share of the pool's pages that sequences and adapters of the batch use."""
        if self.kv_total:
            return min(1.0, ((self.kv_used or 0) + (self.adapter_pages or 0)) / self.kv_total)
        return self.kv_share

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Build from `to_dict`. Raises TypeError for unknown fields."""
        return cls(**value)


def read_figures(text: str) -> Figures | None:
    """Parse the text of `/metrics`; None if it is from neither server, or malformed."""
    worker: dict[str, float] = {}
    vllm: dict[str, float] = {}
    adapters: dict[str, int] = {}
    tuned: list[str] = []
    for prefix, name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            return None
        if prefix == "vllm:":
            vllm[name] = vllm.get(name, 0.0) + value
        elif name == "adapters_resident":
            if tier := _TIER.search(labels):
                adapters["device" if tier[1] == "batch" else tier[1]] = int(value)
        elif name == "tuned_config":
            tuned += _FILE.findall(labels)
        elif not labels:
            worker[name] = value
    if "requests_running" in worker:
        return replace(_of_worker(worker, adapters), tuned_configs=tuned)
    if "num_requests_running" in vllm:
        share = vllm.get("kv_cache_usage_perc", vllm.get("gpu_cache_usage_perc"))
        waiting = vllm.get("num_requests_waiting")
        return Figures(
            running=int(vllm["num_requests_running"]),
            waiting=None if waiting is None else int(waiting),
            kv_share=share,
            **_vllm_adapters(text),
        )
    return None


def _vllm_adapters(text: str) -> dict[str, Any]:
    """Return the fields that vLLM's LoRA metrics give; none before its first request with an adapter."""
    try:
        read = VllmMetrics.parse(text.encode())
    except ValueError:
        return {}
    if read.slots is None:
        return {}
    return {"adapters": {"device": len(read.running)}, "adapter_slots": read.slots}


def _of_worker(found: Mapping[str, float], adapters: Mapping[str, int]) -> Figures:
    def count(name: str) -> int | None:
        return int(found[name]) if name in found else None

    # Adapters on the device are also in host memory: count each once, in the tier nearest to the engine.
    device = adapters.get("device", 0)
    tiers = {"device": device, "host": max(0, adapters.get("host", 0) - device)} if adapters else {}
    return Figures(
        takes_requests=found.get("up", 1.0) > 0,
        running=count("requests_running"),
        waiting=count("requests_waiting"),
        kv_used=count("kv_pages_used"),
        kv_cached=count("kv_pages_cached"),
        kv_total=count("kv_pages_total"),
        adapter_pages=count("adapter_pages"),
        adapters=tiers,
        adapter_bytes=count("adapter_bytes"),
    )
