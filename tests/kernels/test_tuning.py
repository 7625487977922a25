"""The search for configurations: which are tried, what time cuts off, and where the next search goes on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kernels import tuned
from kernels.tune import tune
from kernels.tuning import search
from tests.kernels.made_up_op import CPU, LimitedClock, MadeUp, Size


def clock(op: MadeUp, turns: float = math.inf) -> LimitedClock:
    return LimitedClock(CPU, 1, 1, False, math.inf, op, turns)


def test_from_the_built_in_configuration_to_the_fastest_that_is_right() -> None:
    op = MadeUp()
    entry = search(op, {"rows": 1}, clock(op))
    assert entry is not None
    assert entry["config"] == {"width": 8, "depth": 4}
    assert (entry["default_microseconds"], entry["microseconds"]) == (18.0, 10.0)
    assert entry["tried"] == len(op.tried) == len(set(op.tried))
    assert tuned.TRIALS not in entry
    assert op.tried[0] == Size()
    assert {size.width for size in op.tried[1:3]} == {1, 4}, "small changes first"


@pytest.mark.parametrize("turns", range(1, 14))
def test_time_that_runs_out_leaves_the_best_so_far_and_the_next_search_tries_the_others(turns: int) -> None:
    whole = MadeUp()
    expected = search(whole, {"rows": 1}, clock(whole))
    assert expected is not None
    first = MadeUp()
    entry = search(first, {"rows": 1}, clock(first, turns))
    assert entry is not None
    assert entry["tried"] == len(first.tried) == min(turns, len(whole.tried))
    right = [size for size in first.tried if size.width != 16]
    assert entry["microseconds"] == min(size.microseconds for size in right)
    assert (tuned.TRIALS in entry) == (turns < len(whole.tried))
    second = MadeUp()
    if tuned.TRIALS in entry:
        entry = search(second, {"rows": 1}, clock(second), held=entry)
    assert entry == expected
    assert first.tried + second.tried == whole.tried, "nothing twice"


def test_no_time_at_all_is_no_entry() -> None:
    op = MadeUp()
    assert search(op, {"rows": 1}, clock(op, 0), likely=Size(4, 4)) is None
    assert op.tried == []


def test_a_trial_that_ends_the_process_is_not_made_again(tmp_path: Path) -> None:
    op = MadeUp(ends=Size(4, 2))
    with pytest.raises(SystemExit):
        tune(op, clock(op), tmp_path, lambda shape: True)
    again = MadeUp(ends=Size(4, 2))
    path = tune(again, clock(again), tmp_path, lambda shape: shape["rows"] == 1)
    assert again.ends not in again.tried
    (entry,) = tuned.document(path)["entries"]
    assert entry["microseconds"] == 10.0
    assert entry["tried"] == len(op.tried) + len(again.tried)
    assert tuned.TRIALS not in entry


def test_the_file_holds_an_unfinished_shape_which_ops_may_use_and_the_next_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    op = MadeUp()
    tune(op, clock(op, 4), tmp_path, lambda shape: True)
    assert "made_up: 2 shapes, 8 candidates each or more, 16 in all" in capsys.readouterr().out
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path))
    loaded = tuned.load("made_up", CPU, ("rows",), lambda values: dict(values))
    assert loaded is not None
    assert [entry.config for entry in loaded.entries] == [{"width": 8, "depth": 2}]
    more = MadeUp()
    path = tune(more, clock(more), tmp_path, lambda shape: True)
    entries = tuned.document(path)["entries"]
    assert [(entry["shape"], entry["microseconds"]) for entry in entries] == [
        ({"rows": 1}, 10.0),
        ({"rows": 2}, 10.0),
    ]
    assert not [entry for entry in entries if tuned.TRIALS in entry]
    # The second shape starts from what was fastest at the first.
    start = len(more.tried) - entries[1]["tried"]
    assert more.tried[start : start + 2] == [Size(), Size(8, 4)]
