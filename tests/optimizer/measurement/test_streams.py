"""Figures of a token stream count tokens, not messages."""

from __future__ import annotations

import pytest

from optimizer.measurement.comparison_order import Level
from optimizer.measurement.rounds import ArmRun, Rounds, percentiles
from optimizer.measurement.streams import Stream


def test_several_tokens_at_once_share_the_wait() -> None:
    stream = Stream(10.0, [(10.5, 1), (10.8, 4), (10.9, 5)], 11.0)
    assert stream.ttft == 0.5
    assert stream.itl == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert stream.otps == pytest.approx(10.0)
    assert stream.tokens == 5


def test_messages_right_after_another_are_one_step() -> None:
    stream = Stream(0.0)
    for at, tokens in ((1.0, 1), (1.2, 2), (1.2003, 3), (1.2006, 4), (1.5, 5)):
        stream.arrive(at, tokens)
    assert stream.arrivals == [(1.0, 1), (1.2, 4), (1.5, 5)]
    assert stream.itl == pytest.approx([0.2 / 3] * 3 + [0.3])


def test_an_answer_of_one_message_has_no_speed() -> None:
    stream = Stream(0.0, [(1.0, 3)], 1.0)
    assert (stream.itl, stream.otps) == ([], None)


def test_a_turns_figures() -> None:
    turn = ArmRun([Stream(0.0, [(1.0, 1), (1.2, 2)], 1.2), Stream(0.0, [(3.0, 1), (3.4, 2)], 3.4)], 4.0)
    assert turn.figures == pytest.approx({"ttft_p50": 2.0, "itl_p50": 0.3, "tokens_per_s": 1.0})


def test_a_figure_that_a_round_lacks_is_left_out() -> None:
    short = ArmRun([Stream(0.0, [(1.0, 1)], 1.0)], 1.0)
    one = Level(streams=1)
    rounds = Rounds(["a", "b"], {("a", one): [short], ("b", one): [short]})
    assert rounds.log_ratios("b", [one]) == {"ttft_p50 at 1": [0.0], "tokens_per_s at 1": [0.0]}


def test_percentiles() -> None:
    assert percentiles([float(n) for n in range(101)], 10.0) == {"p50": 500.0, "p90": 900.0, "p99": 990.0}
    assert percentiles([]) == {"p50": 0.0, "p90": 0.0, "p99": 0.0}
