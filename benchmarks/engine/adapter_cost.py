"""Cost of adapters per decode step, compared with the cost of reading their weights.

A decode step reads every weight of the base once, and those of each adapter in the batch. If reading were all
the work, a step with adapters would take (base + adapters) / base bytes times a step without. Steps with and
without adapters alternate, on the engine in this process, with decoding only.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.engine.adapters import make_adapters
from benchmarks.engine.in_process import InProcess
from benchmarks.figure import Figure, compared
from worker_engine.adapters.adapter import Adapter
from worker_engine.protocol import GenerateRequest, SamplingParams

CASES: Final = ((1, 1), (8, 1), (8, 8), (32, 32))
"""(streams, adapters)."""
PROMPT: Final = 64
STEPS: Final = 12
ROUNDS: Final = 5
GOAL: Final = 1.15


def adapter_cost(model: Path) -> Iterator[Figure]:
    """Yield, for each case, a step's time against the base's time scaled by the bytes."""
    process = InProcess(model)
    base_bytes = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        made = make_adapters(Path(folder) / "adapters", max(count for _, count in CASES))
        adapters = [process.load(item.folder) for item in made]
    for streams, count in CASES:
        without, with_adapters = _step_ms(process, [None] * streams, adapters[:count])
        floor = without * (base_bytes + sum(item.nbytes for item in adapters[:count])) / base_bytes
        yield compared(
            "engine",
            f"adapter_step_ms_{streams}_streams_{count}_adapters",
            with_adapters,
            "ms",
            baseline=floor,
            goal=GOAL,
            less_is_better=True,
            note=f"a decode step; baseline: the base alone, {without:.2f} ms, scaled by the bytes read",
        )


def _step_ms(process: InProcess, base: Sequence[None], adapters: Sequence[Adapter]) -> tuple[float, float]:
    mixed = [adapters[index % len(adapters)] for index in range(len(base))]
    rounds = [(decode_ms(process, base), decode_ms(process, mixed)) for _ in range(ROUNDS + 1)][1:]
    return statistics.median(item[0] for item in rounds), statistics.median(item[1] for item in rounds)


def decode_ms(process: InProcess, adapters: Sequence[Adapter | None]) -> float:
    """Return the milliseconds of a step in which every stream decodes, the median of `STEPS`."""
    engine = process.engine
    sampling = SamplingParams(PROMPT, temperature=0.0, ignore_eos=True)
    for index, adapter in enumerate(adapters):
        prompt = tuple(100 + (7 * index + 13 * place) % 40_000 for place in range(PROMPT))
        engine.add_request(GenerateRequest(str(index), prompt, sampling), adapter)
    decoding = 0
    while decoding < len(adapters):  # the step after the last prefill only decodes
        decoding = len(engine.step())
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start) * 1e3)
    for index in range(len(adapters)):
        engine.abort(str(index))
    return statistics.median(times)
