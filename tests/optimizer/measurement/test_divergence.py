"""The KL divergence from the 20 likeliest tokens: never above the full vocabulary's, and near it."""

from __future__ import annotations

import math

import pytest
import torch

from optimizer.measurement.divergence import TOP, Reading, kl

POSITIONS, VOCABULARY = 40, 4096


def reading(logits: torch.Tensor, tokens: torch.Tensor) -> Reading:
    """A reading as the API reports it: the top log-probabilities, and the actual token's."""
    logprobs = torch.log_softmax(logits, -1)
    own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    top = logprobs.topk(TOP)
    told = [
        {**dict(zip(ids, values, strict=True)), token: mine}
        for ids, values, token, mine in zip(
            top.indices.tolist(), top.values.tolist(), tokens.tolist(), own, strict=True
        )
    ]
    return Reading(own, told)


@pytest.mark.parametrize("sharpness", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5, 10.0])
def test_it_is_a_lower_bound_of_the_full_one(sharpness: float, noise: float) -> None:
    draw = torch.Generator().manual_seed(1)
    logits = sharpness * torch.randn(POSITIONS, VOCABULARY, generator=draw, dtype=torch.float64)
    other = logits + noise * torch.randn(logits.shape, generator=draw, dtype=torch.float64)
    tokens = torch.randint(0, VOCABULARY, (POSITIONS,), generator=draw)
    full = torch.nn.functional.kl_div(
        torch.log_softmax(other, -1), torch.log_softmax(logits, -1), log_target=True, reduction="none"
    ).sum(-1)
    found = kl(reading(logits, tokens), reading(other, tokens))
    assert all(0.0 <= mine <= whole + 1e-9 for mine, whole in zip(found, full.tolist(), strict=True))
    if sharpness == 8.0 and noise < 1:
        assert math.fsum(found) > 0.7 * full.sum().item()


def test_the_same_is_no_distance() -> None:
    logits = torch.randn(3, 50, dtype=torch.float64)
    same = reading(logits, torch.tensor([1, 2, 3]))
    assert kl(same, same) == [0.0, 0.0, 0.0]


def test_arms_that_agree_on_no_token_are_as_far_apart_as_is_known() -> None:
    """The other arm's top 20 are all above 1%: an unreported token has at most that."""
    ours = Reading([-0.1], [{100: math.log(0.9)}])
    theirs = Reading([-0.1], [{token: math.log(0.04) for token in range(19)} | {19: math.log(0.01)}])
    least = 0.9 * math.log(0.9 / 0.01) + 0.1 * math.log(0.1 / 0.99)
    assert kl(ours, theirs) == pytest.approx([least])


def test_perplexity_is_of_the_tokens_that_stand_there() -> None:
    assert Reading([math.log(0.5), math.log(0.25)], []).mean_nll == pytest.approx(1.5 * math.log(2))
