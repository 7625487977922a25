"""Paged attention against its specification: decode, chunked prefill, windows, sinks, graphs, races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

import torch

from benchmarks.gpu.attention_inputs import PAGE_SIZE, AttentionInputs
from benchmarks.gpu.attention_inputs import Heads as Shape
from benchmarks.gpu.lora_stream_checks import BUSY_CYCLES, REPEATS
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.timing import Call, captured
from benchmarks.gpu.verdict import DTYPES, failed, implementation, poisoned, verdict


@dataclass(frozen=True)
class AttentionCheck:
    """One check; `lens` holds (new tokens, tokens of context) of each sequence."""

    name: str
    heads: Shape
    lens: tuple[tuple[int, int], ...]
    dtype: str = "bfloat16"
    window: int = 0
    sinks: bool = False

    @property
    def key(self) -> str:
        return f"attention.{self.name}.{self.dtype}"

    def draw(self, device: torch.device) -> AttentionInputs:
        queries, contexts = zip(*self.lens, strict=True)
        dtype = DTYPES[self.dtype]
        return AttentionInputs.draw(
            self.heads, queries, contexts, dtype=dtype, device=device, window=self.window, sinks=self.sinks
        )


LLAMA_8B: Final = Shape("Llama-3.1-8B", 32, 8, 128)
QWEN_32B: Final = Shape("Qwen3-32B", 64, 8, 128)
GPT_OSS: Final = Shape("GPT-OSS-20B", 64, 8, 64)
GEMMA: Final = Shape("Gemma-3-4B", 8, 4, 256)
SMOL: Final = Shape("SmolLM2-135M", 9, 3, 64)
DECODE: Final = ((1, 1), (1, 16), (1, 17), (1, 1600), (1, 431), (1, 2049), (1, 8192))
PREFILL: Final = ((123, 123), (1, 900), (42, 431), (0, 5), (300, 300), (6, 2049))
SHAPES: Final = (
    AttentionCheck("decode", LLAMA_8B, DECODE),
    AttentionCheck("prefill", LLAMA_8B, PREFILL),
    AttentionCheck("decode_group_8", QWEN_32B, DECODE),
    AttentionCheck("prefill_group_8", QWEN_32B, PREFILL),
    AttentionCheck("decode_window_sinks", GPT_OSS, DECODE, window=128, sinks=True),
    AttentionCheck("prefill_window_sinks", GPT_OSS, PREFILL, window=128, sinks=True),
    AttentionCheck("decode_256", GEMMA, DECODE, window=512),
    AttentionCheck("prefill_256", GEMMA, PREFILL, window=512),
    AttentionCheck("decode_group_3", SMOL, DECODE),
    AttentionCheck("prefill_group_3", SMOL, PREFILL),
    AttentionCheck("decode_many", LLAMA_8B, tuple((1, 100 + 7 * i) for i in range(256))),
    AttentionCheck("decode_long", LLAMA_8B, ((1, 32768),)),
)
QUICK: Final = (
    AttentionCheck("decode", Shape("tiny", 4, 2, 16), ((1, 1), (1, 17), (1, 40))),
    AttentionCheck(
        "prefill", Shape("tiny", 6, 2, 24), ((5, 5), (1, 20), (0, 3), (7, 33)), window=9, sinks=True
    ),
)


def checks(quick: bool, device: str) -> Iterator[AttentionCheck]:
    shapes = QUICK if quick else SHAPES
    # The interpreter's bf16 products are wrong.
    first, *others = ("float16", "float32") if device == "cpu" else ("bfloat16", "float16", "float32")
    yield from (replace(shape, dtype=first) for shape in shapes)
    yield from (replace(shape, dtype=dtype) for shape in shapes for dtype in others)


def tasks(quick: bool, device: str) -> list[Task]:
    made = [_task(check.key, check, run) for check in checks(quick, device)]
    if implementation(device) != "cpu path":
        one = replace((QUICK if quick else SHAPES)[0], dtype="float16")
        made.append(_task("attention.graph", one, graph))
    if device == "cuda":
        for one in SHAPES[:2]:
            made += [
                _task(f"attention.race.{one.name}", one, race),
                _task(f"attention.side_stream.{one.name}", one, side_stream),
            ]
    return made


def _task(key: str, check: AttentionCheck, run: Callable[..., Row]) -> Task:
    return Task(key, {"op": "attention", **asdict(check)}, partial(run, check=check))


def run(bench: Bench, check: AttentionCheck) -> Row:
    """Twice on poisoned memory, planned anew: right, and the same bits."""
    inputs = check.draw(bench.device)
    with poisoned():
        first = inputs.attend()
        inputs.plan.kept.clear()
        second = inputs.attend()
    row = judge(inputs, first) | {"implementation": implementation(bench.device)}
    return row if torch.equal(first, second) else row | failed("two runs over the same inputs differ")


def judge(inputs: AttentionInputs, result: torch.Tensor) -> Row:
    return verdict(result, inputs.specified(torch.float64), inputs.specified(result.dtype))


def race(bench: Bench, check: AttentionCheck) -> Row:
    """The same inputs 200 times: the same bits."""
    inputs = check.draw(bench.device)
    first = inputs.attend()
    differing = sum(not torch.equal(inputs.attend(), first) for _ in range(REPEATS))
    row = judge(inputs, first) | {"differing": differing}
    return row | failed(f"{differing} of {REPEATS} runs gave other bits") if differing else row


def side_stream(bench: Bench, check: AttentionCheck) -> Row:
    """Planned and run on another stream while the default one is busy; the host runs ahead."""
    inputs = check.draw(bench.device)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
        result = inputs.attend()
        inputs.plan.kept.clear()
    stream.synchronize()
    return judge(inputs, result)


def graph(bench: Bench, check: AttentionCheck) -> Row:
    """Captured over the shortest sequence, replayed over ever more and longer ones, then over one again."""
    from kernels.attention import gpu
    from kernels.attention.plan import AttentionPlan
    from kernels.attention.worklist import Heads

    inputs = check.draw(bench.device)
    q, pages = inputs.q, inputs.kv_pages
    count, contexts = len(check.lens), [context for _, context in check.lens]
    heads = Heads(check.heads.heads, check.heads.kv_heads, check.heads.head_dim, q.element_size())
    room = gpu.Capacity(count, count, -(-max(contexts) // PAGE_SIZE), items=1 << 14, places=1 << 14)
    plan = gpu.GraphPlan(heads, room, window=inputs.window, device=bench.device)
    out = torch.empty_like(q)

    def call() -> None:
        gpu.attend_graph(out, q, pages, plan, scale=inputs.scale, sinks=inputs.sinks)

    replay: Call | None = None
    row: Row = {"passed": True}
    for number in (1, 2, count, 1):
        shorter = AttentionPlan.build(
            [1] * number, contexts[:number], inputs.plan.pages[:number], page_size=PAGE_SIZE, device=q.device
        )
        plan.load(shorter)
        out.fill_(float("nan"))
        replay = replay or captured(call, bench.device)
        replay()
        row = judge(replace(inputs, q=q[:number], plan=shorter), out[:number])
        if not row["passed"]:
            return row | {"reason": f"{number} sequences: {row['reason']}"}
    return row
