"""Log probabilities of prompts, whatever was cached or preempted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import Forward
from tests.worker_engine.readers.prompts import draw
from worker_engine.protocol import TokenDelta, TokenLogprobs
from worker_engine.readers.prompt_logprobs import BLOCK_ROWS, PromptLogprobs

TOP = 3


def prompt_logprobs_of(deltas: list[TokenDelta]) -> tuple[TokenLogprobs, ...]:
    """Return the first delta's prompt log probabilities; the others have none."""
    assert all(delta.prompt_logprobs is None for delta in deltas[1:])
    assert deltas[0].prompt_logprobs is not None
    return deltas[0].prompt_logprobs


def check(found: tuple[TokenLogprobs, ...], logits: torch.Tensor, prompt: list[int]) -> None:
    logprobs = torch.log_softmax(logits.double(), -1)
    assert [item.token_id for item in found] == prompt[1:]
    for at, item in enumerate(found):
        line = logprobs[at]
        assert item.logprob == pytest.approx(line[item.token_id].item(), abs=1e-4)
        best = line.topk(TOP)
        assert [token for token, _ in item.top] == best.indices.tolist()
        assert [value for _, value in item.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert item.rank == int((line > line[item.token_id]).sum()) + 1


def test_known_pages_are_computed_again(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine, prompt = make_engine(tiny_model), draw(70, 3)
    logits = Forward.load(tiny_model, None)(prompt)[1]
    for _ in range(2):
        engine.add_request(request("it", prompt, 2, prompt_logprobs=TOP), None)
        deltas = drain(engine)["it"]
        check(prompt_logprobs_of(deltas), logits, prompt)
        assert deltas[-1].cached_tokens == 0


def test_a_request_preempted_while_it_generates_tells_once(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    """Then its prompt may come out of the prefix cache."""
    engine, prompt = make_engine(tiny_model), draw(70, 3)
    engine.add_request(request("it", prompt, 9, prompt_logprobs=TOP), None)
    deltas = engine.step() + engine.step()
    sequence = engine._sequences["it"]
    engine.scheduler._preempt(sequence, 0.0)
    deltas += engine.step()
    assert sequence.num_computed == 72
    assert engine.num_prompt_tokens == 70 + 8
    deltas += drain(engine)["it"]
    check(prompt_logprobs_of(deltas), Forward.load(tiny_model, None)(prompt)[1], prompt)
    assert len(tokens(deltas)) == 9


def test_logits_exist_for_a_block_of_positions_only() -> None:
    sizes: list[int] = []

    def predict(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return torch.zeros(len(x), 11)

    reader = PromptLogprobs([at % 11 for at in range(3 * BLOCK_ROWS + 2)], 0)
    reader.take(torch.zeros(3 * BLOCK_ROWS, 4), predict)
    reader.take(torch.zeros(1, 4), predict)
    assert sizes == [BLOCK_ROWS] * 3 + [1]
    assert reader.start == reader.stop


def test_not_finite() -> None:
    reader = PromptLogprobs([1, 2], 1)
    reader.take(torch.zeros(1, 4), lambda x: torch.full((1, 5), float("nan")))
    assert reader.finish() is None
