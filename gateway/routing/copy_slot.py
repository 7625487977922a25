"""A request's slot on a copy: counts the request, and records how the copy did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gateway.errors import EngineDied, GatewayError, UpstreamBroken

if TYPE_CHECKING:
    from gateway.routing.fleet import Copy


class CopySlot:
    """A request's slot on a copy, from `Fleet.acquire` until `release`."""

    __slots__ = ("_adapter", "_adapters", "_copy", "_failed", "_probe", "_reported")

    def __init__(self, copy: Copy, adapters: Counter[str], adapter: str) -> None:
        self._copy, self._adapters, self._adapter = copy, adapters, adapter
        self._reported = self._failed = False
        self._probe = copy.breaker.begin()
        copy.in_flight += 1
        if adapter:
            adapters[adapter] += 1
            copy.active[adapter] += 1

    def succeeded(self) -> None:
        """Note that the copy answered, even by a refusal."""
        self._copy.breaker.succeed(probe=self._probe)
        self._reported, self._probe = True, False

    def completed(self) -> None:
        """Note that the request ended without an error."""
        if not self._failed:
            self._copy.completed(self._adapter)

    def failed(self, error: GatewayError) -> None:
        """Note that the copy broke or could not be reached."""
        if isinstance(error, EngineDied):
            self._copy.engine_died()
        elif isinstance(error, UpstreamBroken):
            self._copy.broke()
        self._copy.breaker.fail(probe=self._probe)
        self._reported, self._probe, self._failed = True, False, True

    def cool_down(self, seconds: float) -> None:
        """Note that the copy asked for no new requests for `seconds`."""
        self._copy.cool_down(seconds)

    def release(self) -> None:
        if not self._reported:
            self._copy.breaker.release(probe=self._probe)
        self._copy.in_flight -= 1
        if self._adapter:
            _take_one(self._adapters, self._adapter)
            _take_one(self._copy.active, self._adapter)


def _take_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
