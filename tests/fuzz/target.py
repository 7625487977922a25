"""A fuzzer: cases drawn from a seed, and the processes whose memory is measured."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
CASE_SECONDS: Final = 60
"""Wall-clock time after which a case counts as a hang; the slowest of those that end takes under 5 s."""


class CaseHangs(BaseException):
    """A case did not end within CASE_SECONDS. No product code that catches Exception can swallow it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the product, ready to be fuzzed.

    Attributes:
        run: runs one case and returns its outcome in one word, such as "refused"; any exception is a finding.
        pids: processes whose resident memory must stay bounded.
    """

    run: Callable[[Random], str]
    pids: Callable[[], Sequence[int]] = lambda: (os.getpid(),)


Opener = Callable[[Path], AbstractContextManager[Target]]
"""Opens a target whose files are in an empty folder."""


def demand(holds: bool, found: object) -> None:
    """Fail with `found` unless the condition holds; for use where an exception is being handled."""
    assert holds, found


def draw_of(seed: int, case: int) -> Random:
    """Return the random numbers of one case, which do not depend on the cases before it."""
    return Random(f"{seed}:{case}")


def run_cases(target: Target, *, seed: int, count: int) -> list[str]:
    """Run the first `count` cases of a seed and return their outcomes; a finding is raised."""
    outcomes = []
    for case in range(count):
        try:
            outcomes.append(target.run(draw_of(seed, case)))
        except Exception as error:
            error.add_note(f"seed {seed}, case {case}")
            raise
    return outcomes


def resident(pids: Sequence[int]) -> int:
    """Resident bytes of the processes together."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE for pid in pids)


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise CaseHangs in the main thread once the body has taken `seconds` of wall-clock time."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise CaseHangs(f"no end within {seconds} s")

    kept = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, kept)
