"""The batched sampler against a naive one, row by row and in plain words; seeds; distributions."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence as Items
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_engine.conftest import request
from worker_engine.protocol import SamplingParams
from worker_engine.sampler import SampledToken, Sampler
from worker_engine.sampling.edits import edit
from worker_engine.sampling.random_stream import stream_key, uniform
from worker_engine.sampling.row import SamplingRow
from worker_engine.sampling.truncation import Draws, draw, largest_at, most_likely, to_weights, truncate
from worker_engine.sequence import Sequence
from worker_engine.text.structured_output import MaskBatch

SAMPLER = Sampler(MaskBatch(1))


def sample(logits: torch.Tensor, sequences: Items[Sequence]) -> list[SampledToken | None]:
    return SAMPLER.launch(logits, sequences).collect()


def sequence(
    prompt: Items[int] = (1,), completion: Items[int] = (), *, eos: Items[int] = (), **sampling: Any
) -> Sequence:
    asked = request("r", prompt, 100, **({"temperature": 1.0} | sampling))
    made = Sequence(asked, None)  # type: ignore[arg-type]
    made.sampling = SamplingRow(asked.sampling, prompt, eos=frozenset(eos))
    made.token_ids += completion
    return made


def logits_of(rows: int, vocab: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(rows, vocab) * 3


def naive_logits(row: Items[float], item: Sequence, eos: Items[int]) -> list[float]:
    """Penalties and biases as vLLM's and OpenAI's documents write them."""
    params, completion = item.request.sampling, item.token_ids[item.num_prompt_tokens :]
    values = list(row)
    if params.allowed_token_ids is not None:
        values = [value if at in params.allowed_token_ids else -math.inf for at, value in enumerate(row)]
    if len(completion) < params.min_tokens:
        for token in (*eos, *params.stop_token_ids):
            values[token] = -math.inf
    for word in params.bad_words:
        if [*completion[len(completion) - len(word) + 1 :], word[-1]] == list(word):
            values[word[-1]] = -math.inf
    for token, bias in params.logit_bias:
        values[token] += bias
    counts = Counter(completion)
    for token in set(item.token_ids):
        penalty = params.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token, count in counts.items():
        values[token] -= params.frequency_penalty * count + params.presence_penalty
    return values


def naive_probs(values: Items[float], params: SamplingParams) -> dict[int, float]:
    """Return the candidate tokens' weights, most likely first, after min_p, top_k and top_p in turn."""
    best = max(values)
    weights = [math.exp((value - best) / params.temperature) for value in values]
    order = sorted(range(len(values)), key=lambda token: -weights[token])
    order = [token for token in order if weights[token] >= params.min_p * weights[order[0]]]
    order = order[: params.top_k or None]
    total = sum(weights[token] for token in order)
    kept: dict[int, float] = {}
    for token in order:
        if kept and sum(kept.values()) >= params.top_p * total:
            break
        kept[token] = weights[token]
    return kept


PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_p": 0.9},
    {"top_k": 5},
    {"top_k": 90, "top_p": 0.7, "temperature": 1.7},
    {"min_p": 0.05},
    {"min_p": 0.0001, "top_p": 0.95, "temperature": 2.0},
    {"top_p": 0.999, "temperature": 2.0},
    {"presence_penalty": 1.5, "temperature": 0.0},
    {"frequency_penalty": -2.0, "top_p": 0.8},
    {"repetition_penalty": 1.8, "presence_penalty": -0.5, "top_k": 1},
    {"logit_bias": ((3, 100.0),)},
    {"logit_bias": ((3, 4.0), (7, -100.0)), "repetition_penalty": 0.5, "min_p": 0.2},
    {"min_tokens": 50, "stop_token_ids": (9,), "logit_bias": ((9, 50.0), (11, 50.0)), "temperature": 0.0},
    {"bad_words": ((5,), (2, 3), (4, 4, 8)), "logit_bias": ((3, 60.0), (8, 60.0)), "temperature": 0.0},
    {"allowed_token_ids": (3, 9, 40), "repetition_penalty": 1.5},
    {"allowed_token_ids": (11, 9, 2, 2), "min_tokens": 50, "temperature": 0.0, "logit_bias": ((5, 100.0),)},
]


@pytest.mark.parametrize("vocab", [256, 259, 1024])
def test_every_parameter_equals_the_naive_sampler(vocab: int) -> None:
    """Each row is drawn at its own uniform number from the naive distribution, in order of ids."""
    draws = random.Random(vocab)
    sequences, expected = [], []
    for seed in range(4 * len(PARAMS)):
        completion = [draws.randrange(12) for _ in range(draws.randrange(20))] + [1, 2]
        options = {"seed": seed} | PARAMS[seed % len(PARAMS)]
        sequences.append(sequence([0, 1, 2, 200], completion, eos=(11,), **options))
    logits = logits_of(len(sequences), vocab, vocab)
    for row, item in zip(logits.double().tolist(), sequences, strict=True):
        params = item.request.sampling
        values = naive_logits(row, item, (11,))
        if params.greedy:
            expected.append(values.index(max(values)))
            continue
        kept = naive_probs(values, params)
        goal = item.sampling.uniform(item.num_completion_tokens) * sum(kept.values())
        passed = 0.0
        for token in sorted(kept):
            passed += kept[token]
            if passed > goal:
                expected.append(token)
                break
    assert [token and token.token_id for token in sample(logits, sequences)] == expected


def test_edited_logits_equal_the_naive_ones() -> None:
    """Every token's logit is compared, also of tokens that are never drawn."""
    sequences = [sequence([0, 1, 2, 200], [5, 5, 2, 9], eos=(11,), **options) for options in PARAMS]
    logits = logits_of(len(sequences), 256, 4)
    assert (logits[:, [0, 1, 2, 5, 9, 200]] < 0).any(), "penalties of unlikely tokens are seen too"
    expected = [naive_logits(row, item, (11,)) for row, item in zip(logits.tolist(), sequences, strict=True)]
    edit(logits, sequences, MaskBatch(1))
    assert torch.allclose(logits.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-4)


def test_a_row_has_the_same_token_alone_and_in_any_batch() -> None:
    logits = logits_of(len(PARAMS) * 2, 49152, 5)
    options = [{"seed": seed} | params for seed, params in enumerate(PARAMS * 2)]
    whole = sample(logits.clone(), [sequence((1, 2), (3, 3), **item) for item in options])
    for row, item in enumerate(options):
        alone = sample(logits[row : row + 1].clone(), [sequence((1, 2), (3, 3), **item)])
        assert alone == [whole[row]]


def test_rows_that_ask_for_nothing_keep_their_logits() -> None:
    logits = logits_of(3, 256, 1)
    before = logits.clone()
    plain = sequence(temperature=0.0)
    sample(logits, [plain, sequence(presence_penalty=1.0, completion=(4,), temperature=0.0), plain])
    assert torch.equal(logits[0], before[0])
    assert torch.equal(logits[2], before[2])
    assert not torch.equal(logits[1], before[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_gives_none(bad: float) -> None:
    logits = logits_of(4, 512, 2)
    logits[1, 17] = bad
    for options in ({"temperature": 0.0}, {}, {"top_p": 0.5}, {"logprobs": 3}):
        tokens = sample(logits.clone(), [sequence(**options) for _ in range(4)])
        assert [token is None for token in tokens] == [False, True, False, False]


@pytest.mark.parametrize(
    "options",
    [{}, {"top_p": 0.8}, {"top_k": 6}, {"min_p": 0.1}, {"temperature": 0.5}, {"top_p": 0.6, "top_k": 20}],
)
def test_frequencies_follow_the_distribution(options: dict[str, Any]) -> None:
    """Chi-squared over 20,000 draws; the bound is the 99.99% quantile, and the seeds are fixed."""
    count, vocab = 20_000, 128
    logits = logits_of(1, vocab, 3)
    params = sequence(**options).request.sampling
    kept = naive_probs(logits[0].double().tolist(), params)
    total = sum(kept.values())
    weights = to_weights(logits.expand(count, -1).clone(), torch.full((count,), params.temperature))
    draws = Draws.build(
        [params] * count, [uniform(stream_key(8, 0), i) for i in range(count)], vocab, weights.device
    )
    tokens = draw(truncate(weights, draws), draws).tolist()
    seen = Counter(tokens)
    assert set(seen) <= set(kept)
    likely = [token for token in kept if kept[token] / total * count >= 5]
    chi = sum((seen[t] - (e := kept[t] / total * count)) ** 2 / e for t in likely)
    freedom = len(likely) - 1
    assert chi < freedom + 4 * math.sqrt(2 * freedom) + 10


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([64, 100, 4096, 4100]),
    scale=st.floats(0.001, 30),
    top_p=st.just(1.0) | st.floats(0.001, 0.999),
    top_k=st.integers(0, 5000),
    min_p=st.sampled_from([0.0, 1e-6, 0.01, 1.0]),
    temperature=st.floats(1e-5, 2),
)
def test_looking_at_few_tokens_first_changes_nothing(
    seed: int, vocab: int, scale: float, top_p: float, top_k: int, min_p: float, temperature: float
) -> None:
    """Few tokens and a search against the search alone; rounding to bf16 makes many logits equal."""
    logits = (logits_of(5, vocab, seed) * scale).bfloat16().float()
    params = SamplingParams(1, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    draws = Draws.build([params] * 5, [uniform(seed, i) for i in range(5)], vocab, logits.device)
    weights = to_weights(logits, draws.temperature)
    few_first, searched = truncate(weights.clone(), draws, 8), truncate(weights.clone(), draws, 0)
    assert torch.equal(few_first, searched)


@pytest.mark.parametrize("vocab", [64, 300, 4096, 49152])
def test_search_by_blocks(vocab: int) -> None:
    values = logits_of(7, vocab, vocab)
    values[0, 5] = values[0, 60] = 99.0
    top, ids = largest_at(values, 20)
    assert torch.equal(top, values.topk(20).values)
    assert torch.equal(values.gather(1, ids), top)
    assert most_likely(values).tolist() == [5, *values[1:].argmax(-1).tolist()]


def test_the_random_stream_is_the_one_that_is_written_down() -> None:
    """SplitMix64's published first outputs for seed 1234567, as Vigna's reference code prints them."""
    from worker_engine.sampling import random_stream

    gamma, mask = random_stream._GAMMA, random_stream._MASK
    outputs = [random_stream._mix(1234567 + gamma * (i + 1) & mask) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert len({stream_key(seed, choice) for seed in range(-50, 50) for choice in range(50)}) == 5000
    numbers = [uniform(stream_key(1, 0), i) for i in range(10_000)]
    assert 0 <= min(numbers) < 0.001 < 0.999 < max(numbers) < 1
    assert abs(sum(numbers) / 10_000 - 0.5) < 0.01


def test_logprobs_are_the_models_own() -> None:
    logits = logits_of(3, 49152, 9)
    expected = torch.log_softmax(logits.double(), -1)
    options: dict[str, Any] = {
        "temperature": 0.3,
        "top_k": 3,
        "presence_penalty": 2.0,
        # The likeliest token of each row: without it all others' probabilities are larger.
        "logit_bias": tuple((token, -100.0) for token in sorted(set(logits.argmax(-1).tolist()))),
        "seed": 1,
    }
    tokens = sample(
        logits.clone(),
        [sequence(**options), sequence(logprobs=0, **options), sequence(logprobs=20, **options)],
    )
    assert tokens[0] is not None
    assert tokens[0].logprobs is None
    for row in (1, 2):
        token = tokens[row]
        assert token is not None
        assert token.logprobs is not None
        assert token.logprobs.token_id == token.token_id
        assert token.logprobs.logprob == pytest.approx(expected[row, token.token_id].item(), abs=1e-5)
        values, ids = expected[row].topk(20 if row == 2 else 0)
        assert [item[0] for item in token.logprobs.top] == ids.tolist()
        assert [item[1] for item in token.logprobs.top] == pytest.approx(values.tolist(), abs=1e-5)
