"""The engine's promises beyond parity: chunking, preemption, seeds, stops, and one bad request alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.lora import LoraPair
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.protocol import FinishReason


def prompts(count: int, length: int = 40) -> list[list[int]]:
    draw = random.Random(9)
    return [[draw.randrange(250) for _ in range(length + 7 * i)] for i in range(count)]


def test_chunked_prefill_changes_nothing(tiny_model: Path, make_engine: EngineFactory) -> None:
    results = []
    for budget in (256, 7):
        engine = make_engine(tiny_model, max_num_batched_tokens=budget, max_num_seqs=4)
        for index, prompt in enumerate(prompts(4)):
            engine.add_request(request(str(index), prompt, 20), None)
        results.append({name: tokens(deltas) for name, deltas in drain(engine).items()})
    assert results[0] == results[1]


@pytest.mark.parametrize("asks", [True, False])
def test_what_a_step_reads_of_a_prompt_is_told_before_it_runs(
    tiny_model: Path, make_engine: EngineFactory, asks: bool
) -> None:
    """The gateway bills the prompt tokens that were computed, whenever the client hangs up."""
    engine = make_engine(tiny_model, max_num_batched_tokens=32, max_num_seqs=4)
    told: list[tuple[int, int, int]] = []
    engine.on_prompts = lambda deltas: told.extend(
        (delta.prompt_tokens, delta.cached_tokens, delta.completion_tokens) for delta in deltas
    )
    prompt, steps = prompts(1, length=80)[0], []
    engine.add_request(replace(request("one", prompt, 3), tells_prompt=asks), None)
    while not engine.idle:
        deltas = engine.step()
        steps.append((len(told), [delta.completion_tokens for delta in deltas]))
    assert told == ([(32, 0, 0), (64, 0, 0), (80, 0, 0)] if asks else [])
    assert steps == [(asks * 1, []), (asks * 2, []), (asks * 3, [1]), (asks * 3, [2]), (asks * 3, [3])]
    engine.add_request(replace(request("again", prompt, 1), tells_prompt=asks), None)
    told.clear()
    drain(engine)
    assert told == ([(80, 64, 0)] if asks else []), "what is cached is told as such"


def test_preemption_recomputes_and_ends(tiny_model: Path, make_engine: EngineFactory) -> None:
    """The pool holds two of six sequences at full length; all end as if they had been alone."""
    alone = make_engine(tiny_model)
    expected: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts(6)):
        alone.add_request(request(str(index), prompt, 60, temperature=1.0, seed=index), None)
        expected |= {name: tokens(deltas) for name, deltas in drain(alone).items()}
    page_bytes = 2 * 3 * 2 * 16 * 12 * 4
    engine = make_engine(tiny_model, memory_gib=18 * page_bytes / 2**30)
    for index, prompt in enumerate(prompts(6)):
        engine.add_request(request(str(index), prompt, 60, temperature=1.0, seed=index), None)
    results = {name: tokens(deltas) for name, deltas in drain(engine).items()}
    assert engine.scheduler.num_preemptions > 0
    assert results == expected
    assert engine.pool.num_used == 0


def test_a_seed_gives_the_same_tokens_in_any_batch(tiny_model: Path, make_engine: EngineFactory) -> None:
    sampling: dict[str, Any] = {"temperature": 0.9, "top_p": 0.8, "seed": 12}
    results = []
    engine = make_engine(tiny_model)
    for neighbours in (0, 5):
        for index, prompt in enumerate(prompts(neighbours)):
            engine.add_request(request(f"n{index}", prompt, 30, temperature=1.3, seed=index), None)
        engine.add_request(request("seeded", prompts(1)[0], 40, **sampling), None)
        results.append(tokens(drain(engine)["seeded"]))
    assert results[0] == results[1]
    engine.add_request(request("other", prompts(1)[0], 40, **(sampling | {"seed": 13})), None)
    assert tokens(drain(engine)["other"]) != results[0]


def test_stop_strings_across_token_borders(tiny_model: Path, make_engine: EngineFactory) -> None:
    """Every token is one byte here, so a stop string of three characters spans three tokens or more."""
    engine = make_engine(tiny_model)
    prompt = prompts(1)[0]
    engine.add_request(request("free", prompt, 80), None)
    text = "".join(delta.text for delta in drain(engine)["free"])
    stop = text[20:23]
    engine.add_request(request("stopped", prompt, 80, stop=(stop, "never seen")), None)
    deltas = drain(engine)["stopped"]
    assert "".join(delta.text for delta in deltas) == text[: text.index(stop)]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert all("\ufffd" not in delta.text or "\ufffd" in text for delta in deltas)


def test_non_finite_logits_end_only_their_request(tiny_model: Path, make_engine: EngineFactory) -> None:
    """Finite weights that overflow fail their own request, not its neighbour nor its pages' next user."""
    engine = make_engine(tiny_model)
    prompt = prompts(1)[0]
    engine.add_request(request("before", prompt, 20), None)
    expected = tokens(drain(engine)["before"])
    huge = LoraPair(torch.full((2, 72), 1e30), torch.full((2, 24), 1e30))
    adapter = Adapter("0" * 64, ({"v_proj": huge}, {}, {}), huge.nbytes)
    engine.add_request(request("bad", prompt, 20), adapter)
    engine.add_request(request("good", prompt, 20), None)
    deltas = drain(engine)
    assert deltas["bad"][-1].finish_reason is FinishReason.ERROR
    assert "non-finite" in str(deltas["bad"][-1].error)
    assert tokens(deltas["good"]) == expected
    for index in range(3):
        engine.add_request(request(f"after{index}", prompt, 20), None)
    assert all(tokens(deltas) == expected for deltas in drain(engine).values())
    assert engine.pool.num_used == 0


def test_abort_frees_pages(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine = make_engine(tiny_model)
    engine.add_request(request("gone", prompts(1)[0], 200), None)
    engine.step()
    assert engine.pool.num_used > 0
    engine.abort("gone")
    engine.abort("gone")
    assert engine.idle
    assert engine.pool.num_used == 0


def test_the_set_of_adapters_may_change_every_step(
    tiny_model: Path, tiny_adapters: dict[str, Path], make_engine: EngineFactory, tmp_path: Path
) -> None:
    """Requests that start and end at different steps see the same adapter as when alone."""
    model = tiny_model
    loader = AdapterLoader(
        model, tmp_path / "c", max_bytes=1 << 30, dtype=torch.float32, device=torch.device("cpu")
    )
    adapters = [loader.load(adapter_ref(folder)) for folder in tiny_adapters.values()]
    engine = make_engine(tiny_model)
    expected = []
    for index, adapter in enumerate(adapters):
        engine.add_request(request("alone", prompts(1)[0], 8 + 5 * index), adapter)
        expected.append(tokens(drain(engine)["alone"]))
    results: dict[str, list[int]] = {str(index): [] for index in range(len(adapters))}
    for index, adapter in enumerate(adapters):
        engine.add_request(request(str(index), prompts(1)[0], 8 + 5 * index), adapter)
        for delta in engine.step():
            results[delta.request_id] += delta.token_ids
    for name, deltas in drain(engine).items():
        results[name] += tokens(deltas)
    assert list(results.values()) == expected


@pytest.mark.parametrize("length", [1, 16, 17])
def test_short_prompts(length: int, tiny_model: Path, make_engine: EngineFactory) -> None:
    """A one-token prompt is a decode row; chunking it or not must not matter to its neighbours."""
    engine = make_engine(tiny_model)
    engine.add_request(request("a", prompts(1)[0][:length], 10), None)
    alone = tokens(drain(engine)["a"])
    engine.add_request(request("a", prompts(1)[0][:length], 10), None)
    engine.add_request(request("b", prompts(1)[0], 10), None)
    assert tokens(drain(engine)["a"]) == alone


def test_a_request_that_never_fits_ends_and_lets_others_pass(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    """Refused before it comes here, as a rule; if not, it must not wait for ever at the head of the queue."""
    page_bytes = 2 * 3 * 2 * 16 * 12 * 4
    engine = make_engine(tiny_model, memory_gib=4.5 * page_bytes / 2**30)
    assert not engine.fits(65)
    engine.add_request(request("large", prompts(1, 65)[0], 5), None)
    engine.add_request(request("small", prompts(1, 20)[0], 5), None)
    deltas = drain(engine)
    assert deltas["large"][-1].finish_reason is FinishReason.ERROR
    assert "cannot hold" in str(deltas["large"][-1].error)
    assert len(tokens(deltas["small"])) == 5
