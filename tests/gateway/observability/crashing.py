"""`python -m tests.gateway.observability.crashing`: a gateway that fails as its first argument says.

The fault is put in from outside, since the gateway has none of its own to show: its text repeats the prompt,
as the text of an unforeseen exception may.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import gateway.__main__ as program
from gateway import completions
from gateway.usage.metering import Attempt


def main() -> None:
    def fail(*arguments: Any) -> Any:
        raise KeyError(str(getattr(arguments[-1], "body", arguments)) + os.environ["CRASH_TEXT"])

    has, calls = Attempt.has, itertools.count()

    def fail_later(*arguments: Any) -> None:
        if next(calls):
            fail(*arguments)
        has(*arguments)

    if os.environ["CRASH_AT"] == "before":
        completions._read = fail  # type: ignore[assignment]
    elif os.environ["CRASH_AT"] == "within":
        Attempt.has = fail  # type: ignore[assignment, method-assign]
    else:
        Attempt.has = fail_later  # type: ignore[assignment, method-assign]
    program.main()


if __name__ == "__main__":
    main()
