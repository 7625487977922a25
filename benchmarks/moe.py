"""Mixture of experts on the CPU: the engine beside transformers' `grouped_mm` experts, and its own adapters.

The checkpoint has about 0.5 B random parameters: 16 layers of 16 experts, of which a row takes 2. All arms
generate the same number of tokens greedily in this process, in every round in turn, so that a busy machine
is busy for all of them; ratios are of medians. A round counts the tokens after each stream's first, so that
prompts are left out on both sides. The process's CPU time per token is reported as well: on a shared machine
only that resolves a few percent.

Bytes are counted. The native code adds up the weights that its units read; and the kernel tells which pages
of one layer's experts a call touched (`Referenced` in /proc/self/smaps).
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# As the worker does; libgomp reads it when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from benchmarks.engine.in_process import InProcess
from benchmarks.figure import Figure, compared
from benchmarks.moe_checkpoint import (
    ATTENTION_LORA_BYTES,
    DENSE_BYTES,
    EXPERTS,
    HIDDEN,
    INTER,
    TOP_K,
    VOCABULARY,
    write_adapter,
    write_checkpoint,
)
from kernels import native
from kernels.moe import route
from kernels.moe.native_experts import Addends, NativeExperts, bytes_read
from kernels.native.matrix import NativeMatrix
from worker_engine.adapters.adapter import Adapter
from worker_engine.protocol import GenerateRequest, Origin, SamplingParams

STREAMS: Final = (1, 8, 32)
ADAPTERS: Final = 8
PROMPT_TOKENS: Final = 16
NEW_TOKENS: Final = 33
ROUNDS: Final = 7
"""The median counts; one round before them warms up."""
GOAL: Final = 1.5
"""Times transformers' speed."""
KEPT: Final = 0.9
"""Of the base's speed times the ratio of bytes, with adapters."""
READ: Final = 1.15
"""Times the active experts' bytes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One round after the first tokens: speed, CPU time, and the bytes of weights that a step read."""

    tokens_per_s: float
    cpu_ms_per_token: float
    step_bytes: float = 0.0


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield speeds beside transformers', adapters' beside the base's, and bytes read."""
    for rows in STREAMS:
        yield touched_pages(rows)
    with tempfile.TemporaryDirectory(prefix="graftwork-bench-") as scratch:
        folder = write_checkpoint(Path(scratch) / "model")
        ours, peer = _Ours(folder, Path(scratch)), _Peer(folder)
        for streams in STREAMS:
            rounds = [
                (ours.round(streams, adapted=False), ours.round(streams, adapted=True), peer.round(streams))
                for _ in range(1 + (2 if quick else ROUNDS))
            ][1:]
            yield from _figures(streams, *zip(*rounds, strict=True))


def _figures(
    streams: int, base: tuple[Measured, ...], adapted: tuple[Measured, ...], peer: tuple[Measured, ...]
) -> Iterator[Figure]:
    speeds = [statistics.median(item.tokens_per_s for item in arm) for arm in (base, adapted, peer)]
    read = [statistics.median(item.step_bytes for item in arm) for arm in (base, adapted)]
    note = (
        f"beside transformers' grouped_mm, bf16, {torch.get_num_threads()} threads, {NEW_TOKENS - 1} tokens"
    )
    yield compared(
        "moe", f"tokens_per_s_{streams}", speeds[0], "token/s", baseline=speeds[2], goal=GOAL, note=note
    )
    costs = [statistics.median(item.cpu_ms_per_token for item in arm) for arm in (base, adapted, peer)]
    ratio = read[0] / read[1]
    distinct = min(streams, ADAPTERS)
    yield compared(
        "moe",
        f"adapters_tokens_per_s_{streams}",
        speeds[1],
        "token/s",
        baseline=speeds[0],
        goal=round(KEPT * ratio, 3),
        note=f"{distinct} adapters on attention and experts; goal {KEPT} of the byte ratio {ratio:.3f}",
    )
    for metric, cost, other, goal in (
        (f"cpu_ms_per_token_{streams}", costs[0], costs[2], 1 / GOAL),
        (f"adapters_cpu_ms_per_token_{streams}", costs[1], costs[0], 1 / (KEPT * ratio)),
    ):
        note = "CPU time of the process, all threads"
        yield compared(
            "moe", metric, cost, "ms", baseline=other, goal=round(goal, 3), less_is_better=True, note=note
        )
    note = "weights that a step read, experts' and adapters' counted"
    yield Figure("moe", f"step_mb_{streams}", round(read[0] / 1e6, 1), "MB", note=note)
    yield Figure("moe", f"adapters_step_mb_{streams}", round(read[1] / 1e6, 1), "MB", note=note)


class _Ours:
    def __init__(self, folder: Path, scratch: Path) -> None:
        # Beside the checkpoint, and gone with it.
        process = InProcess(folder, weights_cache=str(scratch / "weights"))
        self._engine = process.engine
        self._adapters = [
            process.load(write_adapter(scratch / f"adapter-{index}", index)) for index in range(ADAPTERS)
        ]
        self._numbers = itertools.count()

    def round(self, streams: int, *, adapted: bool) -> Measured:
        for index in range(streams):
            self._add(index, self._adapters[index % ADAPTERS] if adapted else None)
        counted: Counter[str] = Counter()
        while len(counted) < streams:
            counted.update({delta.request_id: len(delta.token_ids) for delta in self._engine.step()})
        before, steps = counted.total(), 0
        bytes_read()
        start, spent = time.perf_counter(), time.process_time()
        while not self._engine.idle:
            counted.update({delta.request_id: len(delta.token_ids) for delta in self._engine.step()})
            steps += 1
        took, spent = time.perf_counter() - start, time.process_time() - spent
        if set(counted.values()) != {NEW_TOKENS}:
            raise RuntimeError(f"the engine generated {dict(counted)}, not {NEW_TOKENS} tokens a stream")
        attention = ATTENTION_LORA_BYTES * min(streams, ADAPTERS) if adapted else 0
        step_bytes = DENSE_BYTES + attention + sum(bytes_read()) / steps
        tokens = counted.total() - before
        return Measured(tokens / took, spent * 1e3 / tokens, step_bytes)

    def _add(self, index: int, adapter: Adapter | None) -> None:
        # A salt of its own: prompts repeat from round to round, and none may be found computed.
        number = next(self._numbers)
        origin = Origin(cache_salt=str(number))
        sampling = SamplingParams(NEW_TOKENS, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(str(number), _prompt(index), sampling, origin=origin)
        self._engine.add_request(request, adapter)


class _Peer:
    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        library: Any = AutoModelForCausalLM
        self._model: Any = library.from_pretrained(
            folder, dtype=torch.bfloat16, experts_implementation="grouped_mm"
        ).eval()
        if self._model.config._experts_implementation != "grouped_mm":
            raise RuntimeError("transformers did not take its grouped_mm experts")
        self._model.generation_config.eos_token_id = None

    def round(self, streams: int) -> Measured:
        ids = torch.tensor([_prompt(index) for index in range(streams)])
        whole, first = self._generate(ids, NEW_TOKENS), self._generate(ids, 1)
        tokens = streams * (NEW_TOKENS - 1)
        return Measured(tokens / (whole[0] - first[0]), (whole[1] - first[1]) * 1e3 / tokens)

    def _generate(self, ids: torch.Tensor, count: int) -> tuple[float, float]:
        """Return the seconds, and the CPU seconds, that `count` tokens of each stream take."""
        start, spent = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            made = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        took, spent = time.perf_counter() - start, time.process_time() - spent
        if made.shape[1] != ids.shape[1] + count:
            raise RuntimeError(f"transformers generated {made.shape[1] - ids.shape[1]} tokens, not {count}")
        return took, spent


def _prompt(index: int) -> tuple[int, ...]:
    source = torch.Generator().manual_seed(index)
    return tuple(torch.randint(1000, VOCABULARY, (PROMPT_TOKENS,), generator=source).tolist())


def touched_pages(rows: int) -> Figure:
    """Compare the pages of one layer's experts that a call touches with those of the experts chosen."""
    each = 3 * HIDDEN * INTER
    memory = mmap.mmap(-1, EXPERTS * each * 2)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    weights = torch.frombuffer(memory, dtype=torch.bfloat16)
    weights.normal_(0.0, 0.02)
    gate_up, down = [], []
    for part in weights.view(EXPERTS, each):
        gate_up.append(_matrix(part[: 2 * INTER * HIDDEN], 2 * INTER, HIDDEN))
        down.append(_matrix(part[2 * INTER * HIDDEN :], HIDDEN, INTER))
    experts = NativeExperts(gate_up, down, TOP_K)
    torch.manual_seed(rows)
    x, logits = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(rows, EXPERTS).bfloat16()
    row_weights, chosen = route(logits, TOP_K, normalize=True)
    Path("/proc/self/clear_refs").write_text("1")
    experts(x, row_weights, chosen, Addends())
    found = _referenced(weights.data_ptr())
    active = len(set(chosen.flatten().tolist()))
    return compared(
        "moe",
        f"expert_bytes_{rows}",
        found / 1e6,
        "MB",
        baseline=active * each * 2 / 1e6,
        goal=READ,
        less_is_better=True,
        note=f"pages of a layer's experts that a call touched; {active} were active",
    )


def _matrix(part: torch.Tensor, out: int, inner: int) -> NativeMatrix:
    codes = part.view(out // native.LANES, inner // 2, native.LANES, 2)
    return NativeMatrix(codes, None, None, 16, out, inner)


def _referenced(address: int) -> int:
    """Return the bytes of the mapping at an address that were read or written since they were cleared."""
    for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        first, last = (int(end, 16) for end in mapping.split(" ", 1)[0].split("-"))
        if first <= address < last:
            kib = re.search(r"Referenced:\s+(\d+) kB", mapping)
            return 0 if kib is None else int(kib[1]) * 1024
    raise RuntimeError("the experts' mapping is not in /proc/self/smaps")
