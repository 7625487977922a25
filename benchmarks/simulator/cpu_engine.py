"""The simulator beside the real engine on this CPU, to see how well its figures hold.

The real engine replays a part of the trace with adapters. The times of its steps give the costs of a step by
least squares. The simulator, with these costs, then predicts other replays: other adapters, arrivals and
load, which the real engine runs too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.engine.adapters import make_adapters
from benchmarks.engine.in_process import InProcess
from benchmarks.routing.workload import Request, requests, trace
from benchmarks.simulator.costs import StepLoad
from benchmarks.simulator.experiment import Plan, Result, replay
from benchmarks.simulator.worker import Served, WorkerShape
from contracts.adapters.reference import AdapterRef
from worker_engine.adapters.adapter import Adapter
from worker_engine.config import EngineConfig
from worker_engine.protocol import GenerateRequest, Origin, SamplingParams
from worker_engine.scheduler import Chunk

ADAPTERS: Final = 16
SHORTER: Final = 4
"""Prompts and answers of the trace are divided by this: on a CPU its prompts would take a second each."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """Seconds of a step as a sum of terms with the weights that least squares gave."""

    weights: tuple[float, ...]

    def seconds(self, load: StepLoad) -> float:
        """Return the seconds of a step."""
        return float(np.dot(self.weights, features(load)))

    @classmethod
    def fit(cls, loads: Sequence[StepLoad], seconds: Sequence[float]) -> FittedCosts:
        """Return the weights, none of them negative, of the least relative error."""
        rows = np.array([features(load) for load in loads]) / np.array(seconds)[:, None]
        kept, weights = list(range(rows.shape[1])), np.zeros(rows.shape[1])
        while kept:
            found = np.linalg.lstsq(rows[:, kept], np.ones(len(rows)), rcond=None)[0]
            if (found >= 0).all():
                weights[kept] = found
                break
            kept.pop(int(found.argmin()))
        return cls(tuple(map(float, weights)))


def features(load: StepLoad) -> list[float]:
    """Return what a step's time depends on: a constant, rows, attention, sampling and adapters."""
    rows = sum(load.rows.values())
    attended = sum(count * context for count, context in load.contexts)
    adapters = sum(1 for adapter in load.rows if adapter)
    return [1.0, float(rows), float(attended), float(load.sampled), float(adapters), float(min(rows, 8))]


@dataclass(frozen=True, slots=True)
class Replay:
    """Steps of the real engine, and the seconds of its requests."""

    loads: Sequence[StepLoad]
    seconds: Sequence[float]
    served: Sequence[Served]
    duration: float


class RealEngine:
    """The worker's engine on this CPU with adapters in memory."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._process = InProcess(model)
        made = make_adapters(folder, ADAPTERS)
        self.refs = [one.ref for one in made]
        self._adapters = {one.ref.name: self._process.load(one.folder) for one in made}
        self._loads: list[StepLoad] = []
        self._watch()

    @property
    def adapter_bytes(self) -> int:
        return next(iter(self._adapters.values())).nbytes

    @property
    def shape(self) -> WorkerShape:
        """The simulated worker that has this engine's memory and bounds."""
        engine = self._process.engine
        pool, page = engine.pool.capacity, engine.scheduler.adapters
        config = EngineConfig(Path(), "base")
        page_bytes = int(config.memory_gib * 2**30) // pool
        return WorkerShape(
            pool_bytes=pool * page_bytes,
            page_bytes=page_bytes,
            adapter_bytes=self.adapter_bytes,
            host_bytes=config.adapter_cache_gib * 2**30,
            copy_bandwidth=0.0,
            disk_seconds=0.0,
            max_num_seqs=config.max_num_seqs,
            step_tokens=engine.scheduler.max_tokens,
            max_adapters=page.max_adapters,
        )

    def replay(self, sent: Sequence[Request]) -> Replay:
        """Run the requests at their times."""
        engine, waiting = self._process.engine, list(reversed(sent))
        self._loads, seconds = [], []
        arrived: dict[str, float] = {}
        started: dict[str, float] = {}
        served: list[Served] = []
        begun = time.perf_counter()
        while waiting or not engine.idle:
            now = time.perf_counter() - begun
            while waiting and waiting[-1].at <= now:
                request = waiting.pop()
                name = str(len(arrived))
                arrived[name] = request.at
                engine.add_request(*self._request(name, request))
            if engine.idle:
                time.sleep(max(0.0, waiting[-1].at - (time.perf_counter() - begun)))
                continue
            before = time.perf_counter()
            deltas = engine.step()
            after = time.perf_counter()
            seconds.append(after - before)
            for delta in deltas:
                started.setdefault(delta.request_id, after - begun)
                if delta.finish_reason is not None:
                    first = started[delta.request_id]
                    ttft = first - arrived[delta.request_id]
                    served.append(Served(ttft, after - begun - first, delta.completion_tokens))
        return Replay(self._loads, seconds, served, time.perf_counter() - begun)

    def _request(self, name: str, request: Request) -> tuple[GenerateRequest, Adapter]:
        first = 100 + 7919 * int(name) % 10_000
        prompt = tuple(first + index % 20_000 for index in range(max(1, request.prompt)))
        params = SamplingParams(max_tokens=max(1, request.answer), temperature=0.0, ignore_eos=True)
        adapter = self._adapters[request.adapter.name]
        return GenerateRequest(name, prompt, params, origin=Origin(tenant=adapter.sha256)), adapter

    def _watch(self) -> None:
        """Note the load of each step that the scheduler plans."""
        scheduler, plan = self._process.engine.scheduler, self._process.engine.scheduler.schedule

        def schedule() -> list[Chunk]:
            chunks = plan()
            load = StepLoad()
            for chunk in chunks:
                sequence = chunk.sequence
                adapter = "" if sequence.adapter is None else sequence.adapter.sha256
                context = sequence.num_computed + chunk.count
                load.add(adapter, chunk.count, context, sampled=int(chunk.samples), decodes=chunk.count == 1)
            if chunks:
                self._loads.append(load)
            return chunks

        scheduler.schedule = schedule  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Pair:
    """One replay: what the real engine took, and what the simulator says."""

    name: str
    real: Replay
    simulated: Result

    def figures(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield metric, unit, simulated and real value."""
        tokens = sum(one.tokens for one in self.real.served)
        real = Result(self.real.served, self.real.duration, 0.0, 0, 0, len(self.real.served))
        yield "tokens_per_s", "tokens/s", self.simulated.tokens_per_second, tokens / self.real.duration
        yield "ttft_mean", "ms", 1000 * _mean(self.simulated.served), 1000 * _mean(real.served)
        yield ("request_speed_p50", "tokens/s", self.simulated.request_speed(50), real.request_speed(50))


def compare(model: Path, *, number: int) -> Iterator[Pair]:
    """Fit the costs on one replay of `number` requests, and yield others beside their simulations."""
    with tempfile.TemporaryDirectory(prefix="graftwork-simulator-") as folder:
        engine = RealEngine(model, Path(folder))
        engine.replay(list(_sent(engine.refs, 1000.0, 4, seed=1)))
        rate = _capacity(engine, number)
        fitted = engine.replay(list(_sent(engine.refs, 0.6 * rate, number, seed=2)))
        costs = FittedCosts.fit(fitted.loads, fitted.seconds)
        for name, share, adapters, seed in (
            ("half_load", 0.5, ADAPTERS, 11),
            ("full_load", 0.9, ADAPTERS, 12),
            ("one_adapter", 0.7, 1, 13),
        ):
            sent = list(_sent(engine.refs[:adapters], share * rate, number, seed=seed))
            plan = Plan(engine.shape, costs)
            yield Pair(name, engine.replay(sent), replay(plan, sent, warm_share=0.0))


def _capacity(engine: RealEngine, number: int) -> float:
    """Return the requests per second that the engine completes when all arrive at once."""
    sent = list(_sent(engine.refs, 1000.0, number, seed=3))
    return number / engine.replay(sent).duration


def _sent(refs: Sequence[AdapterRef], rate: float, number: int, *, seed: int) -> Iterator[Request]:
    rows, _ = trace()
    begin = 997 * seed % (len(rows) - number)
    part = [
        replace(row, prompt=1 + row.prompt // SHORTER, answer=1 + row.answer // SHORTER)
        for row in rows[begin : begin + number]
    ]
    return requests(part, refs, rate=rate, number=number, seed=seed)


def _mean(served: Sequence[Served]) -> float:
    return float(np.mean([one.ttft for one in served]))
