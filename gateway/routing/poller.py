"""Polls copies for their load and resident adapters, off the hot path."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import aiohttp

from contracts.base_routes import CopyRoute
from gateway.errors import RoutesUnavailable, UpstreamUnreachable
from gateway.routing.copy_headers import CopyHeaders
from gateway.routing.fleet import Fleet, Report
from gateway.routing.load_reports import Load, of_vllm, of_worker, paths_of
from gateway.routing.route_feed import RouteFeed

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
_AT_ONCE: Final = 32
_MOST_BYTES: Final = 1 << 20
_MOST_MODELS_BYTES: Final = 4 << 20
"""vLLM describes each loaded adapter in about 400 bytes."""
_SILENT_SECONDS: Final = 60.0
"""Pause after an answer of a server that is not vLLM and has no metrics. A server that does not answer at all
is asked again at once, so that routing knows within a second that it is back."""
_MOST_OPENAPI_BYTES: Final = 4 << 20
_PATHS: Final = {"worker": "/load", "openai_http": "/metrics"}
"""Path by kind of copy; of other kinds the gateway knows only its own requests."""
_NO_ANSWER: Final = (aiohttp.ClientConnectionError, OSError)
_FAILURES: Final = (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError, UpstreamUnreachable)


class LoadPoller:
    """Keeps the fleet's load reports fresh. `run` it as a task."""

    def __init__(
        self,
        feed: RouteFeed,
        fleet: Fleet,
        headers: CopyHeaders,
        *,
        interval: float = INTERVAL_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._feed, self._fleet, self._interval = feed, fleet, interval
        self._headers = headers
        self._away: set[str] = set()
        self._silent: dict[str, float] = {}
        self._polled: set[str] = set()
        """Ids of the copies whose poll is under way."""
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Poll each copy once an interval; a slow copy delays only its own next poll."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or True)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as polls,
        ):
            while True:
                started = time.monotonic()
                with suppress(RoutesUnavailable):
                    bases = self._feed.current().bases.values()
                    copies = {copy.id: copy for base in bases for copy in base.copies}
                    self._fleet.keep(copies)
                    for copy in self._due(copies.values()):
                        self._polled.add(copy.id)
                        polls.create_task(self._poll(session, copy))
                await asyncio.sleep(max(0.1, started + self._interval - time.monotonic()))

    def _due(self, copies: Iterable[CopyRoute]) -> list[CopyRoute]:
        """Return the copies to poll now: those that report, and whose last poll has ended."""
        now = time.monotonic()
        self._silent = {copy_id: until for copy_id, until in self._silent.items() if until > now}
        waiting = self._silent.keys() | self._polled
        return [copy for copy in copies if copy.kind in _PATHS and copy.id not in waiting]

    async def _poll(self, session: aiohttp.ClientSession, copy: CopyRoute) -> None:
        try:
            await self._ask(session, copy)
        finally:
            self._polled.discard(copy.id)

    async def _ask(self, session: aiohttp.ClientSession, copy: CopyRoute) -> None:
        known = self._fleet.copy(copy.id)
        try:
            async with self._slots:
                own, own_adapters = known.in_flight, frozenset(known.active)
                asked_at = time.monotonic()
                load = await self._load(session, copy)
        except _FAILURES as error:
            # Only the error's type: aiohttp's text has the request's headers, and so tokens.
            logger.debug("copy %s does not report its load: %s", copy.id, type(error).__name__)
            if copy.kind == "worker":
                known.report = None
                if isinstance(error, _NO_ANSWER):
                    self._note_silence(copy, error)
            elif isinstance(error, _NO_ANSWER):
                await self._check_health(session, copy)  # its report may be slow while it serves
            else:
                known.report = None
                self._silent[copy.id] = time.monotonic() + _SILENT_SECONDS
            return
        if load.draining != known.draining:
            logger.info("copy %s %s", copy.id, "is draining" if load.draining else "accepts requests again")
        if load.names is not None:
            known.listed(load.names, load.busy, asked_at=asked_at)
        busy = load.busy - own_adapters
        known.report = Report(load.pending, load.adapters, time.monotonic(), own, load.slots, busy)
        known.draining = load.draining
        if copy.kind == "worker":
            self._answered(copy)
        else:
            await self._check_health(session, copy)
            await self._read_paths(session, copy)

    async def _check_health(self, session: aiohttp.ClientSession, copy: CopyRoute) -> None:
        """Ask a server whether it lives: without an answer it is away, and at 503 its engine is dead.

        A proxy's 502 or 504, and any other failure, says that the server behind it is gone.
        """
        known, asked_at = self._fleet.copy(copy.id), time.monotonic()
        try:
            headers = self._headers.for_copy(copy)
            url = copy.url + "/health"
            async with self._slots, session.get(url, headers=headers, allow_redirects=False) as response:
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            known.report = None
            self._note_silence(copy, error)
            return
        if status == 503:
            known.engine_died()
            return
        if status >= 500:
            known.away()
            known.restarted()
            return
        if status == 200:
            known.healthy(asked_at=asked_at)
        self._answered(copy)

    def _note_silence(self, copy: CopyRoute, error: Exception) -> None:
        """Note that a copy does not answer; unless it is only late, its process has ended."""
        self._away.add(copy.id)
        if not isinstance(error, TimeoutError):
            self._fleet.copy(copy.id).restarted()

    def _answered(self, copy: CopyRoute) -> None:
        """Let a request try a copy that was away."""
        self._fleet.copy(copy.id).answered()
        if copy.id in self._away:
            self._away.discard(copy.id)
            self._fleet.copy(copy.id).breaker.allow_probe()

    async def _read_paths(self, session: aiohttp.ClientSession, copy: CopyRoute) -> None:
        """Read once in a server's life which paths it has; nothing is known without its OpenAPI document."""
        known = self._fleet.copy(copy.id)
        if known.paths_read:
            return
        try:
            known.paths = paths_of(
                await self._fetch(session, copy, "/openapi.json", most=_MOST_OPENAPI_BYTES)
            )
        except _NO_ANSWER:
            return
        except _FAILURES as error:
            logger.debug("copy %s has no OpenAPI document: %s", copy.id, type(error).__name__)
        known.paths_read = True

    async def _load(self, session: aiohttp.ClientSession, copy: CopyRoute) -> Load:
        report = await self._fetch(session, copy, _PATHS[copy.kind], most=_MOST_BYTES)
        if copy.kind == "worker":
            return of_worker(report)
        models = None
        if copy.loads_adapters:
            models = await self._fetch(session, copy, "/v1/models", most=_MOST_MODELS_BYTES)
        return of_vllm(report, models)

    async def _fetch(self, session: aiohttp.ClientSession, copy: CopyRoute, path: str, *, most: int) -> bytes:
        headers = self._headers.for_copy(copy)
        async with session.get(copy.url + path, headers=headers, allow_redirects=False) as response:
            response.raise_for_status()
            # Read until the end: one `read` returns only the bytes of the first packet.
            body = b""
            while part := await response.content.readany():
                body += part
                if len(body) > most:
                    raise ValueError("the answer is too large")
        return body
