"""Part `engine`: the engine on random weights in Llama-3.1-8B's shape, alone and with 1 to 256 adapters."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Final

import torch

from benchmarks.gpu import published
from benchmarks.gpu.engine_load import Load
from benchmarks.gpu.random_model import ATTENTION, StepBytes, build_engine, latest_engine, random_adapter
from benchmarks.gpu.report import select
from benchmarks.gpu.task import Bench, Goal, Row, Task
from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter, pack_adapter
from worker_engine.checkpoint.model_config import LORA_MODULES, ModelConfig
from worker_engine.engine import Engine

ROW_S: Final = 16.0
"""Seconds that a row's load may take. Where a pilot shows that it would take longer, the output is shortened
until it fits, to no less than `LEAST_OUT` tokens; the row says how many there were."""
LEAST_OUT: Final = 48
PILOT_OUT: Final = 12
WAVES: Final = 2
"""Requests of a row over its concurrency: the second wave meets adapters that were not active before."""

ROOFLINE_GOALS: Final = {16: 1.15, 1: 1.33}
"""Greatest decode step over its roofline, by concurrency."""
HOST_ADAPTERS: Final = 64
"""256 of them would pin 64 GiB of host memory."""
BASE_GOAL: Final = 0.99
ATTENTION_GOAL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row.

    Attributes:
        adapters: that requests take in turn; 0 for the base alone.
        modules: "all" linear layers, or "attention".
        loaded: the base alone, in an engine that served adapters just before.
        graphs: decode steps are replayed; on a CPU their functions run again.
        overlap: a step is launched before the last one's tokens are read.
    """

    triton: bool
    adapters: int
    concurrency: int = 16
    modules: str = "all"
    loaded: bool = False
    rank: int = 32
    prompt_tokens: int = 1600
    out_tokens: int = 600
    graphs: bool = True
    overlap: bool = True

    @property
    def key(self) -> str:
        kernels = "triton" if self.triton else "plain"
        what = f"{self.adapters}_adapters" if self.adapters else "base"
        extra = ("_attention" if self.modules == "attention" else "") + ("_loaded" if self.loaded else "")
        extra += ("" if self.graphs else "_no_graphs") + ("" if self.overlap else "_no_overlap")
        return f"engine.{kernels}.{what}{extra}.batch_{self.concurrency}"


def scenarios(quick: bool) -> Iterator[Scenario]:
    """The issue's rows first; then adapters from 1 to 256, with the Triton kernels and without."""
    if quick:
        small = partial(Scenario, False, concurrency=3, rank=4, prompt_tokens=24, out_tokens=8)
        yield from (small(0), small(2), small(0, loaded=True), small(2, modules="attention"))
        yield from (small(2, graphs=False), small(2, overlap=False))
        return
    for triton in (True, False):
        for concurrency in (16, 1):
            yield Scenario(triton, 0, concurrency)
            yield Scenario(triton, 8 if concurrency == 16 else 1, concurrency)
        yield Scenario(triton, 0, loaded=True)
        yield Scenario(triton, 8, modules="attention")
        for adapters in (64, 256, 1, 16) + ((2, 4, 32, 128) if triton else ()):
            yield Scenario(triton, adapters)
        if triton:
            for graphs, overlap in ((False, True), (True, False), (False, False)):
                for adapters in (0, 8):
                    yield Scenario(triton, adapters, graphs=graphs, overlap=overlap)


def tasks(quick: bool, device: str) -> list[Task]:
    """In order of the variable that chooses the kernels, which is read when the process starts."""
    return [
        Task(
            scenario.key,
            {"op": "engine", "model": "tiny" if quick else "Llama-3.1-8B", **asdict(scenario)},
            partial(run, scenario=scenario),
            environment={"GRAFTWORK_WORKER_TRITON": "1" if scenario.triton else "0"},
            limit_s=150.0,
        )
        for scenario in scenarios(quick)
    ]


def _engine(quick: bool, device: torch.device, graphs: bool, overlap: bool) -> tuple[Engine, ModelConfig]:
    build = partial(
        build_engine,
        quick,
        device,
        max_model_len=128 if quick else 4096,
        # KV of 16 sequences takes 5 GB and the pages of their adapters up to 5 GB.
        memory_gib=0.02 if quick else 40.0,
        max_num_seqs=16,
        cuda_graphs="lazy" if graphs else "off",
        overlap="on" if overlap else "off",
    )
    return latest_engine((graphs, overlap), build)


@cache
def adapter_of(index: int, rank: int, modules: str, model: ModelConfig, device: torch.device) -> Adapter:
    """In host memory that the device copies from, as the loader hands it over.

    Adapters beyond `HOST_ADAPTERS` share an earlier one's weights there; each has pages of its own.
    """
    if index >= HOST_ADAPTERS:
        name = hashlib.sha256(f"{index} {rank} {modules}".encode()).hexdigest()
        return replace(adapter_of(index % HOST_ADAPTERS, rank, modules, model, device), sha256=name)
    names = ATTENTION if modules == "attention" else LORA_MODULES
    drawn = random_adapter(index, model, rank, device, names)
    host = tuple(
        {name: LoraPair(pair.a.cpu(), pair.b.cpu()) for name, pair in pairs.items()} for pairs in drawn.layers
    )
    return pack_adapter(replace(drawn, layers=host), pinned=device.type == "cuda")


def run(bench: Bench, scenario: Scenario) -> Row:
    """A pilot that warms up and decides the length, then the measured load."""
    engine, model = _engine(bench.quick, bench.device, scenario.graphs, scenario.overlap)
    adapters = [
        adapter_of(index, scenario.rank, scenario.modules, model, bench.device)
        for index in range(scenario.adapters)
    ]
    if scenario.loaded:
        before = [adapter_of(index, scenario.rank, "all", model, bench.device) for index in range(8)]
        _load(engine, model, before, scenario, PILOT_OUT, "before").run(scenario.concurrency)
    pilot = _load(engine, model, adapters, scenario, min(PILOT_OUT, scenario.out_tokens), "pilot")
    pilot.run(scenario.concurrency)
    out_tokens = _fitting(pilot, scenario)
    load = _load(engine, model, adapters, scenario, out_tokens, "load")
    before_load = _replays(engine)
    load.run(WAVES * scenario.concurrency)
    return {
        "replayed_steps": _replays(engine) - before_load,
        "out_tokens": out_tokens,
        "shortened": out_tokens < scenario.out_tokens,
        "rule": f"output shortened, if need be, to fit {ROW_S:.0f} s, to no less than {LEAST_OUT} tokens",
        "adapter_load_ms": _adapter_load_ms(engine),
        **load.figures(),
        **_against_roofline(bench, model, load),
    }


def _adapter_load_ms(engine: Engine) -> float | None:
    """Mean time of the copies that brought an adapter from host memory into pages; None without any."""
    tier = engine.scheduler.adapters.tier
    if tier is None or not (count := tier.load_seconds.count):
        return None
    return round(tier.load_seconds.total / count * 1e3, 3)


def _replays(engine: Engine) -> int:
    return 0 if engine.graphs is None else engine.graphs.num_replays


def _load(
    engine: Engine, model: ModelConfig, adapters: Sequence[Adapter], scenario: Scenario, out: int, name: str
) -> Load:
    name = f"{scenario.key}.{name}"
    return Load(engine, model, adapters, scenario.concurrency, scenario.prompt_tokens, out, name)


def _fitting(pilot: Load, scenario: Scenario) -> int:
    """Output tokens for which all waves, at the pilot's pace, take at most `ROW_S`."""
    step_s = statistics.median(step.seconds for step in pilot.decode_steps) if pilot.decode_steps else 0.1
    prefill_s = max(pilot.seconds - PILOT_OUT * step_s, 0.0)
    fit = int((ROW_S / WAVES - prefill_s) / step_s)
    return min(scenario.out_tokens, max(fit, LEAST_OUT))


def _against_roofline(bench: Bench, model: ModelConfig, load: Load) -> Row:
    """Decode steps over the time in which their bytes could be copied."""
    if not load.decode_steps:
        return {"decode_steps": 0}
    needs = StepBytes.for_model(model)
    steps = load.decode_steps
    sizes = [needs.of_step(step.contexts, step.adapter_bytes) for step in steps]
    rooflines = [bench.ceilings.roofline_us(size, 0) for size in sizes]
    ratios = [step.seconds * 1e6 / us for step, us in zip(steps, rooflines, strict=True)]
    return {
        "decode_steps": len(steps),
        "decode_step_us": round(statistics.median(step.seconds for step in steps) * 1e6, 1),
        "step_bytes": round(statistics.median(sizes)),
        "base_bytes": needs.base,
        "adapter_bytes": round(statistics.median(step.adapter_bytes for step in steps)),
        "step_roofline_us": round(statistics.median(rooflines), 1),
        "step_roofline_ratio": round(statistics.median(ratios), 3),
    }


def summary(rows: Sequence[Row]) -> list[str]:
    """A line a row."""
    head = f"{'row':40} {'TTFT ms':>8} {'ITL ms':>7} {'OTPS':>7} {'tok/s':>8} {'x roof':>6} {'out':>4}"
    return [head, *(_line(row) for row in rows if "otps" in row), *published.lines(rows)]


def _line(row: Row) -> str:
    ratio = row.get("step_roofline_ratio")
    roofline = "-" if ratio is None else f"{ratio:.2f}"
    return (
        f"{row['key'].removeprefix('engine.'):40.40} {row['ttft_ms']['p50']:8.0f} "
        f"{row['itl_ms']['p50']:7.2f} {row['otps']:7.1f} {row['out_tokens_per_s']:8.0f} "
        f"{roofline:>6} {row['out_tokens']:4}"
    )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The issue's goals, for the Triton kernels and for plain operations."""
    measured = [row for row in rows if row.get("measured_on") == "cuda" and "otps" in row]
    found: list[Goal] = []
    for triton in (True, False):
        name = "Triton kernels" if triton else "plain operations"
        own = select(measured, triton=triton, graphs=True, overlap=True)
        found += [_step_goal(own, name, batch, most) for batch, most in ROOFLINE_GOALS.items()]
        base = select(own, adapters=0, concurrency=16, loaded=False)
        loaded = select(own, adapters=0, loaded=True)
        attention = select(own, modules="attention")
        found.append(_share(f"{name}: base-only with adapters loaded", loaded, base, BASE_GOAL))
        found.append(_share(f"{name}: attention-only adapters", attention, base, ATTENTION_GOAL))
    return found


def _step_goal(rows: Sequence[Row], kernels: str, batch: int, most: float) -> Goal:
    name = f"{kernels}: decode steps at batch {batch} within {most}x of their roofline"
    ratios = [row["step_roofline_ratio"] for row in select(rows, concurrency=batch) if row["decode_steps"]]
    if not ratios:
        return Goal(name, "not measured on a GPU", None)
    return Goal(name, f"{min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rows", max(ratios) <= most)


def _share(name: str, rows: Sequence[Row], base: Sequence[Row], least: float) -> Goal:
    """Throughput over that of the base alone; only of rows with the same output length."""
    name = f"{name} >= {least} of base-only"
    pairs = [(row, other) for row in rows for other in base if row["out_tokens"] == other["out_tokens"]]
    if not pairs:
        reason = "not measured on a GPU" if not (rows and base) else "outputs shortened differently"
        return Goal(name, reason, None)
    share = pairs[0][0]["out_tokens_per_s"] / pairs[0][1]["out_tokens_per_s"]
    return Goal(name, f"{share:.3f}", share >= least)
