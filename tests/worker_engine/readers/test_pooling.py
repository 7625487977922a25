"""Embeddings are pooled hidden states, whatever was cached or preempted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contracts.adapters.pooling import Pooling
from tests.worker_engine.conftest import EngineFactory, drain, request
from tests.worker_engine.forward_pass import Forward
from tests.worker_engine.readers.prompts import draw
from worker_engine.engine import Engine
from worker_engine.protocol import FinishReason, GenerateRequest, PoolingParams, TokenDelta
from worker_engine.readers.pooling import Pooler


def embed(name: str, prompt: list[int], pooling: Pooling = Pooling.LAST) -> GenerateRequest:
    return replace(request(name, prompt, 0), pooling=PoolingParams(pooling))


def vector(deltas: list[TokenDelta]) -> torch.Tensor:
    assert len(deltas) == 1
    assert deltas[0].finish_reason is FinishReason.LENGTH
    assert (deltas[0].token_ids, deltas[0].completion_tokens) == ((), 0)
    assert deltas[0].embedding is not None
    return torch.tensor(deltas[0].embedding)


def pooled(hidden: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    kept = {Pooling.LAST: hidden[-1:], Pooling.FIRST: hidden[:1], Pooling.MEAN: hidden}[pooling]
    return torch.nn.functional.normalize(kept.mean(0), dim=0)


def test_a_cached_prefix_changes_nothing(tiny_model: Path, make_engine: EngineFactory) -> None:
    """The last position is computed over it; poolings that need earlier positions look for none."""
    engine, prompt = make_engine(tiny_model), draw(70, 3)
    reference = Forward.load(tiny_model, None)(prompt)[0]
    engine.add_request(request("generates", prompt, 4), None)
    drain(engine)
    for pooling, cached in ((Pooling.LAST, 64), (Pooling.MEAN, 0), (Pooling.FIRST, 0)):
        engine.add_request(embed("again", prompt, pooling), None)
        deltas = drain(engine)["again"]
        assert (vector(deltas) - pooled(reference, pooling)).abs().max() <= 1e-5
        assert deltas[0].cached_tokens == cached


def test_pages_of_an_embedded_prompt_are_shared(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine, prompt = make_engine(tiny_model), draw(70, 3)
    engine.add_request(embed("first", prompt, Pooling.MEAN), None)
    drain(engine)
    engine.add_request(request("then", prompt, 4), None)
    assert drain(engine)["then"][-1].cached_tokens == 64


def preempted(engine: Engine, name: str) -> None:
    """Sets a running sequence back to wait, as a lack of pages does."""
    sequence = engine._sequences[name]
    assert 0 < sequence.num_computed < len(sequence.token_ids)
    engine.scheduler._preempt(sequence, 0.0)


def test_a_preempted_prompt_is_read_once(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine, prompt = make_engine(tiny_model, max_num_seqs=4, max_num_batched_tokens=20), draw(70, 3)
    wanted = pooled(Forward.load(tiny_model, None)(prompt)[0], Pooling.MEAN)
    engine.add_request(embed("it", prompt, Pooling.MEAN), None)
    for _ in range(2):
        engine.step()
        preempted(engine, "it")
    assert (vector(drain(engine)["it"]) - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_no_embedding_of_what_has_no_direction(value: float) -> None:
    pooler = Pooler(PoolingParams(), 3)
    pooler.take(torch.full((1, 8), value), lambda x: x)
    assert pooler.finish() is None


def test_non_finite_states_end_that_request_only(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine = make_engine(tiny_model)
    engine._runner._model._embedding[77] = float("nan")
    engine.add_request(embed("bad", [5, 77, 6]), None)
    engine.add_request(embed("good", [5, 78, 6]), None)
    found = drain(engine)
    assert found["bad"][0].finish_reason is FinishReason.ERROR
    assert "non-finite" in (found["bad"][0].error or "")
    assert len(vector(found["good"])) == 72


def test_states_whose_squares_overflow() -> None:
    pooler = Pooler(PoolingParams(Pooling.MEAN), 2)
    pooler.take(torch.tensor([[3e30, 0.0], [0.0, 4e30]]), lambda x: x)
    found = pooler.finish()
    assert found is not None
    assert found.embedding is not None
    assert list(found.embedding) == pytest.approx([0.6, 0.8])


def found_by(params: PoolingParams, states: list[list[float]]) -> list[float]:
    pooler = Pooler(params, len(states))
    pooler.take(torch.tensor(states)[pooler.start : pooler.stop], lambda x: x)
    found = pooler.finish()
    assert found is not None
    assert found.embedding is not None
    return list(found.embedding)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (PoolingParams(Pooling.MEAN), [0.6, 0.8, 0.0]),
        (PoolingParams(Pooling.MEAN, normalize=False), [3.0, 4.0, 0.0]),
        (PoolingParams(Pooling.MEAN, normalize=False, dimensions=1), [3.0]),
        (PoolingParams(Pooling.MEAN, dimensions=1), [1.0]),
    ],
)
def test_means_are_scaled_and_cut_as_asked(params: PoolingParams, expected: list[float]) -> None:
    assert found_by(params, [[6.0, 0.0, 0.0], [0.0, 8.0, 0.0]]) == pytest.approx(expected)


def test_first_numbers_that_are_all_zero_stay_zero() -> None:
    assert found_by(PoolingParams(dimensions=2), [[0.0, 0.0, 5.0]]) == [0.0, 0.0]


def test_a_zero_mean_that_is_not_scaled_is_an_embedding() -> None:
    assert found_by(PoolingParams(Pooling.MEAN, normalize=False), [[1.0], [-1.0]]) == [0.0]
