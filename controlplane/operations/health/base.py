"""Findings of health checks, and a runner with one deadline for all checks."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from django.utils.translation import gettext as _

DEADLINE_SECONDS: Final = 2.5
"""Time limit for all checks together."""


class Level(StrEnum):
    """Health from good to bad; UNUSED marks a component that this installation does not use."""

    UNUSED = "unused"
    OK = "ok"
    UNKNOWN = "unknown"
    WARN = "warn"
    DOWN = "down"


_ORDER: Final = (Level.UNUSED, Level.OK, Level.UNKNOWN, Level.WARN, Level.DOWN)


def worst(levels: Sequence[Level]) -> Level:
    """Return the worst of `levels`; UNUSED for an empty sequence."""
    return max(levels, key=_ORDER.index, default=Level.UNUSED)


@dataclass(frozen=True, slots=True)
class Finding:
    """State of a component.

    Attributes:
        text: description of the state; todo: recommended action, '' for none.
        since: when the component entered this state; None if it does not report it.
        details: one line per member of the component, such as a gateway.
    """

    level: Level
    text: str
    todo: str = ""
    since: dt.datetime | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A component: its name in the API, its title on the page, and its state."""

    name: str
    title: str
    finding: Finding


Check = Callable[[], Finding]
_running: dict[str, tuple[Future[Finding], float]] = {}
_lock = threading.Lock()


def checks_run(checks: dict[str, Check], *, seconds: float = DEADLINE_SECONDS) -> dict[str, Finding]:
    """Run all checks concurrently and return their findings by name.

    A check that exceeds the deadline is reported as down and is not restarted before it returns, so each
    check has at most one thread.
    """
    started = time.monotonic()
    futures = {name: _begin(name, check, started) for name, check in checks.items()}
    done = wait([future for future, _ in futures.values()], timeout=seconds).done
    return {
        name: _result(future) if future in done else _late(started - began + seconds)
        for name, (future, began) in futures.items()
    }


def _begin(name: str, check: Check, now: float) -> tuple[Future[Finding], float]:
    with _lock:
        known = _running.get(name)
        if known is not None and not known[0].done():
            return known
        future: Future[Finding] = Future()
        _running[name] = (future, now)
    threading.Thread(target=_fulfil, args=(future, check), name=f"health-{name}", daemon=True).start()
    return future, now


def _fulfil(future: Future[Finding], check: Check) -> None:
    try:
        future.set_result(check())
    except Exception as error:  # any exception of a component's client is that component's state
        future.set_exception(error)


def _result(future: Future[Finding]) -> Finding:
    error = future.exception()
    if error is None:
        return future.result()
    text = _("The check failed: %(kind)s: %(error)s") % {
        "kind": type(error).__name__,
        "error": str(error)[:300],
    }
    return Finding(Level.DOWN, text, _("Check the component's log and the network connection to it."))


def _late(seconds: float) -> Finding:
    text = _("No response within %(seconds).0f s.") % {"seconds": max(1.0, seconds)}
    return Finding(Level.DOWN, text, _("Check the component's log and the network connection to it."))


def dated(finding: Finding, since: dt.datetime) -> Finding:
    """Return the finding with `since` filled in if the finding has none."""
    return finding if finding.since is not None else replace(finding, since=since)
