"""Multi-LoRA's CPU path against alternatives: one decoder layer's four packed linear layers.

(a) `loop`: two products per adapter and slice, on row ranges known beforehand. (b) `peft`: PEFT's own layers
called with `adapter_names=`. (c) `padded`: batched products of weights already stacked in batch order, padded
to the highest rank; `gathered`: the same, stacked by adapter and selected by index on each call, as vLLM's
torch_ops do. Base products are outside every contender's time (PEFT's base layer returns a precomputed
tensor). All contenders compute the same on the same weights, which is checked before they are timed in
alternating rounds. Enough layers rotate that weights come from memory, as in a model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch.nn.functional import linear

from benchmarks.figure import Figure, compared
from benchmarks.race import long_race
from kernels import native
from kernels.lora import LoraPair, LoraWeights, Owners, Segments, apply_lora, concatenate, native_rows
from kernels.lora.cpu import check
from kernels.lora.layout import Layout
from kernels.lora.products import Products

Shapes = tuple[tuple[int, tuple[int, ...]], ...]
"""(in, out of each slice) of the packed linear layers: q/k/v, o, gate/up, down."""

MODELS: Final[dict[str, Shapes]] = {
    "smollm2-135m": ((576, (576, 192, 192)), (576, (576,)), (576, (1536, 1536)), (1536, (576,))),
    "llama-3.1-8b": ((4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (14336, 14336)), (14336, (4096,))),
}
DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
RANK: Final = 16
MIXED: Final = (4, 8, 16, 32, 64)
ROTATED: Final = 100e6
"""Bytes of weights read between two uses of the same layer: three times the cache."""
MOST_LAYERS: Final = 200
ROUNDS: Final = 7
SECONDS: Final = 0.6
"""Time limit per contender and case; at least three rounds are timed regardless."""


@dataclass(frozen=True, slots=True)
class Linear:
    """One packed linear layer with its adapters and its rows."""

    pairs: list[list[LoraPair]]
    widths: tuple[int, ...]
    x: torch.Tensor
    out: torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """A batch over the adapters of several decoder layers."""

    layers: list[list[Linear]]
    row_adapter: list[int]

    @classmethod
    def draw(cls, shapes: Shapes, ranks: Sequence[int], row_adapter: list[int], dtype: torch.dtype) -> Case:
        """Draw normal weights: A of variance 1/in, B of 1/rank."""
        per_rank = sum(inner + width for inner, widths in shapes for width in widths)
        nbytes = sum(ranks) * per_rank * dtype.itemsize
        count = min(max(1, round(ROTATED / nbytes)), MOST_LAYERS)
        pool = torch.randn(15_000_017, generator=torch.Generator().manual_seed(3))
        offset = 0

        def normal(rows: int, columns: int, scale: float) -> torch.Tensor:
            nonlocal offset
            offset = (offset + 7919) % (len(pool) - rows * columns)
            return pool[offset : offset + rows * columns].view(rows, columns).mul(scale).to(dtype)

        def layer(inner: int, widths: tuple[int, ...]) -> Linear:
            pairs = [
                [LoraPair(normal(r, inner, inner**-0.5), normal(r, width, r**-0.5)) for r in ranks]
                for width in widths
            ]
            rows = len(row_adapter)
            return Linear(pairs, widths, normal(rows, inner, 1.0), normal(rows, sum(widths), 1.0))

        return cls([[layer(*shape) for shape in shapes] for _ in range(count)], row_adapter)


Contender = Callable[[int], None]
"""Adds the adapters of one decoder layer to each of its four outputs."""


def ours(case: Case) -> Contender:
    segments, owners = Segments.group(case.row_adapter), Owners()
    weights = [[_weights(each, owners) for each in layer] for layer in case.layers]

    def run(index: int) -> None:
        for each, lora in zip(case.layers[index], weights[index], strict=True):
            apply_lora(each.out, each.x, lora, segments)

    return run


def _weights(each: Linear, owners: Owners) -> LoraWeights:
    weights = concatenate(each.pairs, each.widths, owners)
    if weights is None:
        raise ValueError("every rank is 0; expected one that is not")
    return weights


def loop(case: Case) -> Contender:
    """Use contiguous rows per adapter: `case.row_adapter` is sorted."""
    order = sorted(set(case.row_adapter) - {-1})
    first = {adapter: case.row_adapter.index(adapter) for adapter in order}
    spans = {a: slice(first[a], first[a] + case.row_adapter.count(a)) for a in order}

    def run(index: int) -> None:
        for each in case.layers[index]:
            column = 0
            for row, width in zip(each.pairs, each.widths, strict=True):
                for adapter, span in spans.items():
                    pair = row[adapter]
                    each.out[span, column : column + width].addmm_(linear(each.x[span], pair.a), pair.b)
                column += width

    return run


def padded(case: Case) -> Contender:
    """Shrink all slices at once, and expand with the products that are fastest in the dtype."""
    stacks = [[_stack(each, case.row_adapter) for each in layer] for layer in case.layers]

    def run(index: int) -> None:
        for each, (a, b) in zip(case.layers[index], stacks[index], strict=True):
            _add(each, torch.bmm(each.x.unsqueeze(1), a.transpose(1, 2)), b)

    return run


def gathered(case: Case) -> Contender:
    adapters = len(case.layers[0][0].pairs[0])
    stacks = [[_stack(each, range(adapters)) for each in layer] for layer in case.layers]
    selected = torch.tensor(case.row_adapter)

    def run(index: int) -> None:
        for each, (a, b) in zip(case.layers[index], stacks[index], strict=True):
            shrunk = torch.bmm(each.x.unsqueeze(1), a.index_select(0, selected).transpose(1, 2))
            _add(each, shrunk, [piece.index_select(0, selected) for piece in b])

    return run


def _stack(each: Linear, adapters: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return A [adapters, slices * highest rank, in] and, by slice, B [adapters, highest rank, out]."""
    rank = max(pair.rank for row in each.pairs for pair in row)
    slices, inner = len(each.widths), each.x.shape[1]
    a = each.x.new_zeros(len(adapters), slices, rank, inner)
    b = [each.x.new_zeros(len(adapters), rank, width) for width in each.widths]
    for offset, adapter in enumerate(adapters):
        for index, row in enumerate(each.pairs):
            a[offset, index, : row[adapter].rank] = row[adapter].a
            b[index][offset, : row[adapter].rank] = row[adapter].b
    return a.view(len(adapters), slices * rank, inner), b


def _add(each: Linear, shrunk: torch.Tensor, b: list[torch.Tensor]) -> None:
    column, rank = 0, shrunk.shape[2] // len(b)
    for index, (piece, width) in enumerate(zip(b, each.widths, strict=True)):
        target = each.out[:, column : column + width].unsqueeze(1)
        shrunk_slice = shrunk[:, :, index * rank : (index + 1) * rank]
        if target.dtype == torch.bfloat16 or target.is_contiguous():
            target.baddbmm_(shrunk_slice, piece)
        else:
            target.add_(torch.bmm(shrunk_slice, piece))
        column += width


def peft(case: Case) -> Contender:
    names = ["__base__" if adapter < 0 else str(adapter) for adapter in case.row_adapter]
    layers = [[_peft_layers(each) for each in layer] for layer in case.layers]

    def run(index: int) -> None:
        for each, modules in zip(case.layers[index], layers[index], strict=True):
            for module in modules:
                module(each.x, adapter_names=names)

    return run


class _FixedLinear(torch.nn.Linear):
    """A base layer that returns a precomputed product."""

    given: torch.Tensor

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.given


def _peft_layers(each: Linear) -> list[Any]:
    """Return one PEFT layer per slice, on our tensors, adding to our output."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear as PeftLinear

    layers: list[Any] = []
    column = 0
    for row, width in zip(each.pairs, each.widths, strict=True):
        with torch.device("meta"):
            base = _FixedLinear(each.x.shape[1], width, bias=False)
            base.given = each.out[:, column : column + width]
            layer: Any = None
            for adapter, pair in enumerate(row):
                config = LoraConfig(r=pair.rank, lora_alpha=pair.rank, init_lora_weights=False)
                if layer is None:
                    layer = PeftLinear(base, str(adapter), config=config, r=pair.rank, lora_alpha=pair.rank)
                else:
                    layer.update_layer(str(adapter), pair.rank, lora_alpha=pair.rank, config=config)
        for adapter, pair in enumerate(row):
            layer.lora_A[str(adapter)].weight = torch.nn.Parameter(pair.a, requires_grad=False)
            layer.lora_B[str(adapter)].weight = torch.nn.Parameter(pair.b.T.contiguous(), requires_grad=False)
        layers.append(layer.eval())
        column += width
    return layers


CONTENDERS: Final[dict[str, Callable[[Case], Contender]]] = {
    "loop": loop,
    "peft": peft,
    "padded": padded,
    "gathered": gathered,
}


def run() -> Iterator[Figure]:
    """Yield decoder layers per second at each batch, against each contender."""
    with torch.inference_mode():
        for model, shapes in MODELS.items():
            for name, dtype in DTYPES.items():
                yield from _figures(f"{model}_{name}", shapes, dtype)
        yield from _preparation()


def _figures(name: str, shapes: Shapes, dtype: torch.dtype) -> Iterator[Figure]:
    distinct = list(range(32))
    ranks = [MIXED[adapter * 7 % len(MIXED)] for adapter in distinct]
    figures = partial(_case, shapes=shapes, dtype=dtype)
    goals = {"loop": 3.0, "peft": 3.0, "padded": 1.0, "gathered": None}
    yield from figures(f"{name}_32x32", [RANK] * 32, distinct, goals)
    yield from figures(f"{name}_32x32_mixed", ranks, distinct, {**goals, "padded": 2.0})
    for rows, adapters in ((1, 1), (8, 1), (8, 4), (32, 1), (32, 4), (128, 1), (128, 4), (128, 32)):
        owners = sorted(row % adapters for row in range(rows))
        yield from figures(f"{name}_{rows}x{adapters}", [RANK] * adapters, owners, {"loop": None})
    half = [-1] * 16 + [row // 2 for row in range(16)]
    yield from figures(f"{name}_16_base_16x8", [RANK] * 8, half, {"loop": None})
    case = Case.draw(shapes, [RANK], [0] * 512, dtype)
    times = _race(case, {"ours": ours, "plain": loop})
    note = "512 rows of one adapter, rank 16, beside the same two products per slice"
    metric, mine, plain = f"{name}_512x1_vs_plain_gemms", times["ours"], times["plain"]
    yield compared(
        "kernels.lora", metric, mine, "us/layer", baseline=plain, goal=1.15, less_is_better=True, note=note
    )


def _case(
    name: str,
    ranks: list[int],
    row_adapter: list[int],
    goals: dict[str, float | None],
    *,
    shapes: Shapes,
    dtype: torch.dtype,
) -> Iterator[Figure]:
    case = Case.draw(shapes, ranks, row_adapter, dtype)
    times = _race(case, {"ours": ours, **{peer: CONTENDERS[peer] for peer in goals}})
    spread = f"rank {ranks[0]}" if len(set(ranks)) == 1 else f"ranks {min(ranks)}-{max(ranks)} mixed"
    threads, mine = torch.get_num_threads(), 1e6 / times["ours"]
    note = f"{len(row_adapter)} rows, {len(ranks)} adapters, {spread}, {threads} threads"
    for peer, goal in goals.items():
        metric, theirs = f"{name}_vs_{peer}", 1e6 / times[peer]
        yield compared("kernels.lora", metric, mine, "layer/s", baseline=theirs, goal=goal, note=note)


def _race(case: Case, makers: dict[str, Callable[[Case], Contender]]) -> dict[str, float]:
    """Return us per decoder layer of each contender, medians of interleaved rounds."""
    contenders = {name: make(case) for name, make in makers.items()}
    _agree(case, contenders)
    count = len(case.layers)

    def over_layers(contender: Contender) -> Callable[[], None]:
        def run() -> None:
            for index in range(count):
                contender(index)

        return run

    calls = {name: over_layers(contender) for name, contender in contenders.items()}
    times = long_race(calls, rounds=ROUNDS, seconds=SECONDS)
    return {name: seconds * 1e6 / count for name, seconds in times.items()}


def _agree(case: Case, contenders: dict[str, Contender]) -> None:
    """Raise RuntimeError when a contender's result differs from ours."""
    outs = [each.out for each in case.layers[0]]
    base = [out.clone() for out in outs]
    results: dict[str, list[torch.Tensor]] = {}
    for name, contender in contenders.items():
        contender(0)
        results[name] = [out.double() - before.double() for out, before in zip(outs, base, strict=True)]
        for out, before in zip(outs, base, strict=True):
            out.copy_(before)
    for name, result in results.items():
        for mine, theirs in zip(results["ours"], result, strict=True):
            off = float((mine - theirs).abs().max() / mine.abs().max())
            if not off < 4 * torch.finfo(outs[0].dtype).eps ** 0.9:
                raise RuntimeError(f"{name} differs from ours by {off:.1e} of the greatest change")


def _preparation() -> Iterator[Figure]:
    """Yield a batch's planning cost, the checks' cost per layer, and the cost of new adapters.

    The races above exclude `plan_of_*`, which each batch pays once for all decoder layers.
    """
    rows = [row * 32 // 256 for row in range(256)]
    case = Case.draw(MODELS["smollm2-135m"], [RANK] * 32, rows, torch.bfloat16)
    each, owners = case.layers[0][0], Owners()
    weights, segments = _weights(each, owners), Segments.group(rows)
    layouts = [_weights(one, owners).layout for one in case.layers[0]]
    parts: dict[str, Callable[[], object]] = {
        "plan_of_32_rows": lambda: _plan(list(range(32)), layouts),
        "plan_of_256_rows": lambda: _plan(rows, layouts),
        "check_of_a_layer": lambda: check(each.out, each.x, weights, segments),
        "joining_a_decoder_layer": lambda: _join(case),
    }
    for name, part in parts.items():
        value = round(_median(part), 1)
        yield Figure("kernels.lora", name, value, "us", note="SmolLM2-135M, bf16, 32 adapters of rank 16")


def _plan(rows: list[int], layouts: Sequence[Layout]) -> list[object]:
    """Plan a batch for the four packed linear layers of every decoder layer, as on this machine."""
    segments = Segments.group(rows)
    if native.LIBRARY is None:
        return [Products.choose(segments, layout) for layout in layouts]
    return [native_rows.NativeProducts.build(segments, layout) for layout in layouts]


def _join(case: Case) -> None:
    owners = Owners()
    for each in case.layers[0]:
        weights = _weights(each, owners)
        _ = weights.matrices if native.LIBRARY is None else native_rows.weights_of(weights)


def _median(call: Callable[[], object], times: int = 30) -> float:
    """Return the median microseconds of a call."""
    spent: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        spent.append((time.perf_counter() - start) * 1e6)
    return statistics.median(spent)
