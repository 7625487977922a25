"""Tokens sampled while drafts are verified follow the model's distribution, for any draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.speculation.conftest import Prophet, accepted, prophesying
from worker_engine.draft import Draft
from worker_engine.protocol import SamplingParams
from worker_engine.sampler import SampledToken
from worker_engine.sampling.row import SamplingRow
from worker_engine.sampling.truncation import Draws, to_weights, truncate, truncates
from worker_engine.speculation.rejection import accepted_tokens

SEEDS = 1500
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
FEW = (11, 47, 90, 131, 170, 201, 240)
"""The tokens that are drawn: with all 256 no cell would be full."""
BIAS = 30.0
ALL_AT_ONCE: dict[str, Any] = {"temperature": 1.4, "top_k": 20, "top_p": 0.7, "min_p": 0.05}
ONE_BY_ONE: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.0, "presence_penalty": 1.0, "top_k": 8},
]


def distribution(logits: torch.Tensor, params: SamplingParams) -> np.ndarray[Any, Any]:
    """Return the distribution of one row of float32 logits, after temperature and truncation."""
    draws = Draws.build([params], [0.5], logits.shape[1], logits.device)
    weights = to_weights(logits.clone(), draws.temperature)
    if truncates(params):
        truncate(weights, draws)
    return (weights.double() / weights.double().sum()).squeeze(0).numpy()


def p_value(counts: Counter[int], expected: np.ndarray[Any, Any]) -> float:
    """Of Pearson's test; cells that expect fewer than 5 are one. A token of probability 0 fails at once."""
    total = sum(counts.values())
    assert all(expected[token] > 0 for token in counts), "a token that truncation drops"
    large = [token for token in range(len(expected)) if expected[token] * total >= 5]
    seen = [counts[token] for token in large]
    means = [expected[token] * total for token in large]
    if total - sum(means) >= 5:
        seen.append(total - sum(seen))
        means.append(total - sum(means))
    if len(means) == 1:
        return 1.0
    statistic = sum((s - m) ** 2 / m for s, m in zip(seen, means, strict=True))
    half = torch.tensor([(len(means) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.parametrize(
    "options", [ALL_AT_ONCE, *(pytest.param(each, marks=pytest.mark.slow) for each in ONE_BY_ONE)], ids=str
)
@pytest.mark.costly("draws many tokens")
def test_second_tokens_are_distributed_as_the_model_says(
    options: dict[str, Any], tiny_model: Path, make_engine: EngineFactory
) -> None:
    """Over many seeds: the second token, given each first one, against the logits of that very text.

    Guesses are of one and the same fixed text, so that some are right and most are not.
    """
    options = options | {"logit_bias": tuple((token, BIAS) for token in FEW)}
    engine = make_engine(tiny_model, speculation="ngram", max_num_seqs=16)
    first = make_engine(tiny_model)
    first.add_request(request("x", PROMPT, 6, logit_bias=options["logit_bias"]), None)
    likely = tokens(drain(first)["x"])
    prophesying(engine, Prophet({str(seed): likely for seed in range(SEEDS)}, 0.9), most=3)
    for seed in range(SEEDS):
        engine.add_request(request(str(seed), PROMPT, 5, seed=seed, **options), None)
    drawn = [tokens(deltas) for deltas in drain(engine).values()]
    by_first: dict[int, Counter[int]] = {}
    for told in drawn:
        by_first.setdefault(told[0], Counter())[told[1]] += 1
    proposed, right = accepted(engine)
    assert proposed > SEEDS
    assert 0.02 * proposed < right < 0.9 * proposed
    tested = 0
    for token, counts in by_first.items():
        if sum(counts.values()) < 100:
            continue
        logits = next_logits(tiny_model, make_engine, [*PROMPT, token])
        params = SamplingParams(5, **options)
        logits[0, list(FEW)] += BIAS
        if params.presence_penalty:
            logits[0, token] -= params.presence_penalty
        assert p_value(counts, distribution(logits, params)) > 1e-4
        tested += sum(counts.values())
    assert tested >= SEEDS / 2


def next_logits(model: Path, make_engine: EngineFactory, prompt: Items[int]) -> torch.Tensor:
    engine = make_engine(model)
    run, seen = engine._runner.run, []

    def watched(*args: Any) -> Any:
        logits, sampled = run(*args)
        seen.append(logits.clone())
        return logits, sampled

    engine._runner.run = watched  # type: ignore[method-assign, assignment]
    engine.add_request(request("x", prompt, 1), None)
    drain(engine)
    return torch.cat(seen)


@pytest.mark.parametrize("guess", [0, 1, 2, 3])
def test_one_place_is_rejection_sampling(guess: int) -> None:
    """A draft token is accepted with its probability; its replacement is drawn from the rescaled rest."""
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    row = SamplingRow(SamplingParams(9), ())
    draw = np.random.default_rng(guess)
    counts: Counter[int] = Counter()
    keeps = 0
    for token in draw.choice(4, size=20_000, p=weights):
        taken = accepted_tokens([Draft(guess, row, (), 1)], [SampledToken(int(token)), SampledToken(99)])
        counts[taken[0].token_id] += 1  # type: ignore[union-attr]
        keeps += len(taken) == 2
        assert (len(taken) == 2) == (token == guess)
    assert abs(keeps / 20_000 - weights[guess]) < 0.015
    assert p_value(counts, weights) > 1e-4


def test_the_test_sees_a_wrong_distribution() -> None:
    """The common mistake: accept every draft token that the model thinks possible at all."""
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    draw = np.random.default_rng(1)
    wrong = Counter(
        int(token) if draw.random() > 0.1 else 3 for token in draw.choice(4, size=2_000, p=weights)
    )
    assert p_value(wrong, weights) < 1e-4


def test_nothing_behind_logits_that_are_not_finite_counts() -> None:
    row = SamplingRow(SamplingParams(9), ())
    drafts = [Draft(token, row, (), 1) for token in (5, 6)]
    assert list(accepted_tokens(drafts, [SampledToken(5), None, SampledToken(7)])) == [SampledToken(5), None]
    assert list(accepted_tokens(drafts, [None, SampledToken(6), SampledToken(7)])) == [None]
    assert list(accepted_tokens(drafts, [SampledToken(4), None, None])) == [SampledToken(4)]
