"""The index says what a scan of the whole list would say, and guesses what stood there."""

from __future__ import annotations

import random

import pytest

from worker_engine.speculation.ngram import SIZES, NgramIndex


def scan(tokens: list[int], most: int) -> list[int]:
    """The longer n-gram's last place before the end, else the shorter one's; periodic beyond the end."""
    for size in SIZES:
        gram = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(gram) == size and tokens[end - size : end] == gram:
                return [tokens[end + place % (len(tokens) - end)] for place in range(most)]
    return []


@pytest.mark.parametrize("alphabet", [2, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_the_index_finds_what_a_scan_finds(alphabet: int, seed: int) -> None:
    draw = random.Random(seed)
    tokens = [draw.randrange(alphabet) for _ in range(draw.randrange(0, 60))]
    index = NgramIndex()
    found = 0
    for _ in range(150):
        index.follow(tokens)
        most = draw.randrange(1, 12)
        assert index.guess(tokens, most) == scan(tokens, most)
        found += bool(index.guess(tokens, most))
        # Several tokens at once, or none, as after a step in which guesses were right.
        tokens += [draw.randrange(alphabet) for _ in range(draw.randrange(0, 5))]
    assert found > (50 if alphabet < 40 else 5)


def test_large_token_ids_do_not_collide() -> None:
    """The largest vocabularies served have 262,208 tokens."""
    index = NgramIndex()
    top = 262_207
    tokens = [top, 0, 1, 2, 0, top]
    index.follow(tokens)
    assert index.guess(tokens, 3) == []
    tokens += [top, 0]
    index.follow(tokens)
    assert index.guess(tokens, 2) == [1, 2]


def test_a_loop_is_guessed_beyond_the_end() -> None:
    index, tokens = NgramIndex(), [9, 1, 2, 3, 1, 2, 3, 1, 2]
    index.follow(tokens)
    assert index.guess(tokens, 7) == [3, 1, 2, 3, 1, 2, 3]
