"""Paged attention's CPU path beside what else could do the same, over as many layers as a model has.

Decode: `padded`, one batched product over the longest context of the batch, gathered by page (what this
engine did before); `single`, `scaled_dot_product_attention` for each sequence on its gathered keys;
`transformers`, its eager form and its sdpa form, the faster counting, on keys that already stand padded in
one tensor: nothing is gathered, so it does less. Prefill: `single`, and `transformers` likewise.

Pages are shuffled, as in a pool that has served for a while. A step plans once, then visits the layers, each
with keys of its own; all contenders visit the same ones, round by round in turn, and are compared with each
other's results first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.figure import Figure, compared
from benchmarks.race import long_race
from kernels.attention import AttentionPlan, attend

PAGE: Final = 16


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    heads: int
    kv_heads: int
    head_dim: int
    layers: int


MODELS: Final = (Model("smollm2-135m", 9, 3, 64, 30), Model("llama-3.1-8b", 32, 8, 128, 32))
DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
DECODE: Final = (1, 8, 32, 128)
CONTEXTS: Final = (128, 512, 2048)
PREFILL: Final = ((128, 0, 0), (512, 0, 0), (128, 2048, 0), (512, 2048, 0), (512, 2048, 256))
"""(new tokens, history, window)."""
STREAMED: Final = 128 << 20
"""Bytes of keys and values that a step visits, where the model's layers reach: four times the cache."""
LARGEST: Final = 320 << 20
"""Bytes of one layer's keys and values, padded; larger cases are left out."""
ROUNDS: Final = 7
SECONDS: Final = 1.0
"""Per contender and case; at least three rounds are timed even so."""


@dataclass(frozen=True, slots=True)
class Case:
    """One step of one model: every layer's keys and values, in pages and padded.

    Attributes:
        padded: [2, sequences, kv_heads, longest context, head_dim] of each layer.
    """

    model: Model
    plan: Callable[[], AttentionPlan]
    q: torch.Tensor
    layers: list[torch.Tensor]
    padded: list[torch.Tensor]
    window: int

    @property
    def scale(self) -> float:
        return float(self.model.head_dim**-0.5)


def run() -> Iterator[Figure]:
    """Yields milliseconds a layer, decode then prefill, beside each contender's."""
    with torch.inference_mode():
        for model in MODELS:
            for label, dtype in DTYPES.items():
                for count in DECODE:
                    for context in CONTEXTS:
                        name = f"decode_{count}x{context}"
                        yield from _measure(name, model, label, dtype, [1] * count, [context] * count)
                    name = f"decode_{count}_mixed"
                    yield from _measure(name, model, label, dtype, [1] * count, _mixed(count))
                for new, history, window in PREFILL:
                    name = f"prefill_{new}_after_{history}" + (f"_window_{window}" if window else "")
                    yield from _measure(name, model, label, dtype, [new], [history + new], window)


def _mixed(count: int) -> list[int]:
    """One context of 4000 tokens in 32, the others of 20 to 143, in no order."""
    return [4000 if index % 32 == 0 else 20 + index * 37 % 124 for index in range(count)]


def _measure(
    name: str,
    model: Model,
    label: str,
    dtype: torch.dtype,
    query_lens: list[int],
    context_lens: list[int],
    window: int = 0,
) -> Iterator[Figure]:
    bytes_ = len(context_lens) * max(context_lens) * 2 * model.kv_heads * model.head_dim * dtype.itemsize
    if bytes_ > LARGEST:
        return
    layers = max(1, min(model.layers, STREAMED // bytes_))
    case = _case(model, dtype, query_lens, context_lens, window, layers=layers)
    contenders: dict[str, Callable[[Case], list[torch.Tensor]]] = {"ours": _ours, "single": _single}
    if max(query_lens) == 1:
        contenders["padded"] = _padded
    contenders |= {"eager": _eager, "sdpa": _sdpa}
    results = {contender: form(case) for contender, form in contenders.items()}
    for result in results.values():
        for mine, theirs in zip(results["ours"], result, strict=True):
            torch.testing.assert_close(mine, theirs, atol=0.03, rtol=0.03)
    calls = {contender: partial(form, case) for contender, form in contenders.items()}
    step_times = long_race(calls, rounds=ROUNDS, seconds=SECONDS)
    times = {contender: seconds / len(case.layers) for contender, seconds in step_times.items()}
    times["transformers"] = min(times.pop("eager"), times.pop("sdpa"))
    note = f"{model.heads}/{model.kv_heads} heads of {model.head_dim}, {len(case.layers)} layers a step"
    for contender in times.keys() - {"ours"}:
        yield compared(
            "kernels.attention",
            f"{model.name}_{label}_{name}_beside_{contender}",
            times["ours"] * 1e3,
            "ms a layer",
            baseline=times[contender] * 1e3,
            goal=1.0 if contender == "padded" else None,
            less_is_better=True,
            note=note,
        )


def _case(
    model: Model,
    dtype: torch.dtype,
    query_lens: list[int],
    context_lens: list[int],
    window: int,
    *,
    layers: int,
) -> Case:
    draw = torch.Generator().manual_seed(1)
    counts = [-(-context // PAGE) for context in context_lens]
    order = torch.randperm(sum(counts), generator=draw).tolist()
    pages = [[order.pop() for _ in range(count)] for count in counts]
    width = max(counts)
    tables = torch.tensor([held + [0] * (width - len(held)) for held in pages])
    size = (2, model.kv_heads, sum(counts), PAGE, model.head_dim)
    held = [torch.randn(size, generator=draw).to(dtype) for _ in range(layers)]
    longest = max(context_lens)
    padded = [kv[:, :, tables].flatten(3, 4)[:, :, :, :longest].transpose(1, 2).contiguous() for kv in held]
    q = torch.randn(sum(query_lens), model.heads, model.head_dim, generator=draw).to(dtype)

    def plan() -> AttentionPlan:
        return AttentionPlan.build(query_lens, context_lens, pages, page_size=PAGE)

    return Case(model, plan, q, held, padded, window)


def _ours(case: Case) -> list[torch.Tensor]:
    plan = case.plan()
    return [attend(case.q, kv, plan, scale=case.scale, window=case.window) for kv in case.layers]


def _single(case: Case) -> list[torch.Tensor]:
    plan = case.plan()
    spans = []
    row = 0
    for queries, context, held in zip(plan.query_lens, plan.context_lens, plan.pages, strict=True):
        mask = _mask(queries, context, case.window)
        spans.append((slice(row, row + queries), context, torch.tensor(held), mask))
        row += queries
    outs = []
    for kv in case.layers:
        flat = kv.flatten(3, 4)
        parts = []
        for rows, context, pages, mask in spans:
            gathered = flat.index_select(2, pages).view(2, 1, case.model.kv_heads, -1, case.model.head_dim)
            keys, values = gathered[:, :, :, :context]
            parts.append(
                _torch(case, case.q[rows].transpose(0, 1)[None], keys, values, mask)[0].transpose(0, 1)
            )
        outs.append(torch.cat(parts))
    return outs


def _torch(
    case: Case, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    causal = mask is None and q.shape[2] > 1
    return scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, is_causal=causal, scale=case.scale, enable_gqa=True
    )


def _mask(queries: int, context: int, window: int) -> torch.Tensor | None:
    """bool [queries, context]; none where all is seen, or plainly causal."""
    if not window and (queries == 1 or queries == context):
        return None
    keys = torch.arange(context)
    newest = keys[context - queries :].unsqueeze(1)
    return (keys <= newest) & (keys > newest - window) if window else keys <= newest


def _padded(case: Case) -> list[torch.Tensor]:
    """Decode: [kv heads * sequences, group, dim] x [.., dim, longest context]."""
    plan, model, dtype = case.plan(), case.model, case.q.dtype
    count, heads, dim = len(plan.pages), model.kv_heads, model.head_dim
    width = max(map(len, plan.pages))
    table = torch.tensor([page for held in plan.pages for page in ([*held] + [0] * width)[:width]])
    beyond = torch.arange(width * PAGE) >= torch.tensor(plan.context_lens).unsqueeze(1)
    bias = torch.zeros(beyond.shape, dtype=dtype).masked_fill_(beyond, float("-inf"))
    bias = bias.unsqueeze(1).repeat(heads, 1, 1)
    outs = []
    for kv in case.layers:
        gathered = kv.view(2 * heads, -1, PAGE * dim).index_select(1, table).view(2, heads * count, -1, dim)
        grouped = case.q.view(count, heads, -1, dim).transpose(0, 1).reshape(heads * count, -1, dim)
        scores = torch.baddbmm(bias, grouped, gathered[0].mT, alpha=case.scale)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), gathered[1])
        outs.append(mixed.view(heads, count, -1, dim).transpose(0, 1).reshape(case.q.shape))
    return outs


def _batched(case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q [sequences, heads, queries, dim] and the mask of a padded batch, [sequences, 1, queries, keys]."""
    plan = case.plan()
    count, longest = len(plan.context_lens), max(plan.context_lens)
    q = case.q.view(count, -1, case.model.heads, case.model.head_dim).transpose(1, 2)
    if q.shape[2] > 1:
        mask = _mask(q.shape[2], longest, case.window)
        return q, None if mask is None else mask[None, None]
    lens = torch.tensor(plan.context_lens)
    return q, (torch.arange(longest) < lens.unsqueeze(1))[:, None, None]


def _sdpa(case: Case) -> list[torch.Tensor]:
    q, mask = _batched(case)
    mixed = [_torch(case, q, kv[0], kv[1], mask) for kv in case.padded]
    return [one.transpose(1, 2).reshape(case.q.shape) for one in mixed]


def _eager(case: Case) -> list[torch.Tensor]:
    q, mask = _batched(case)
    if mask is None:
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
    group = case.model.heads // case.model.kv_heads
    outs = []
    for kv in case.padded:
        keys, values = (part.repeat_interleave(group, dim=1) for part in kv)
        scores = torch.matmul(q, keys.mT) * case.scale + bias
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        outs.append(torch.matmul(weights, values).transpose(1, 2).reshape(case.q.shape))
    return outs
