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
from gateway.errors import RoutesUnavailable
from gateway.routing.fleet import Fleet, Report
from gateway.routing.load_reports import of_vllm, of_worker
from gateway.routing.route_feed import RouteFeed

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
_AT_ONCE: Final = 32
_MOST_BYTES: Final = 1 << 20
_SILENT_SECONDS: Final = 60.0
"""Pause after a failure: an OpenAI-compatible server need not be vLLM and may have no metrics."""
_PATHS: Final = {"worker": "/load", "openai_http": "/metrics"}
"""Path by kind of copy; of other kinds the gateway knows only its own requests."""


class LoadPoller:
    """Keeps the fleet's load reports fresh. `run` it as a task."""

    def __init__(
        self,
        feed: RouteFeed,
        fleet: Fleet,
        fleet_token: str,
        *,
        interval: float = INTERVAL_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._feed, self._fleet, self._interval = feed, fleet, interval
        self._headers = {"authorization": f"Bearer {fleet_token}"}
        self._silent: dict[str, float] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Poll every copy once an interval; a copy that does not answer delays no other."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                started = time.monotonic()
                with suppress(RoutesUnavailable):
                    bases = self._feed.current().bases.values()
                    copies = {copy.id: copy for base in bases for copy in base.copies}
                    self._fleet.keep(copies)
                    await self._ask_all(session, copies.values())
                await asyncio.sleep(max(0.1, started + self._interval - time.monotonic()))

    async def _ask_all(self, session: aiohttp.ClientSession, copies: Iterable[CopyRoute]) -> None:
        now = time.monotonic()
        self._silent = {copy_id: until for copy_id, until in self._silent.items() if until > now}
        asked = (copy for copy in copies if copy.kind in _PATHS and copy.id not in self._silent)
        await asyncio.gather(*(self._ask(session, copy) for copy in asked))

    async def _ask(self, session: aiohttp.ClientSession, copy: CopyRoute) -> None:
        known, worker = self._fleet.copy(copy.id), copy.kind == "worker"
        try:
            async with self._slots:
                own = known.in_flight
                body = await self._fetch(session, copy)
            load = of_worker(body) if worker else of_vllm(body)
            report = Report(load.pending, load.adapters, time.monotonic(), own)
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            # A draining copy is expected to disappear. For other copies, requests will find out.
            known.report = None
            if not worker:
                self._silent[copy.id] = time.monotonic() + _SILENT_SECONDS
            # Only the error's type: aiohttp's text has the request's headers, and so the fleet token.
            logger.debug("copy %s does not report its load: %s", copy.id, type(error).__name__)
            return
        if load.draining != known.draining:
            logger.info("copy %s %s", copy.id, "is draining" if load.draining else "accepts requests again")
        known.report, known.draining = report, load.draining

    async def _fetch(self, session: aiohttp.ClientSession, copy: CopyRoute) -> bytes:
        # The fleet token is only for workers; vLLM's metrics need none.
        headers = self._headers if copy.kind == "worker" else {}
        async with session.get(
            copy.url + _PATHS[copy.kind], headers=headers, allow_redirects=False
        ) as response:
            response.raise_for_status()
            # Read until the end: one `read` returns only the bytes of the first packet.
            body = b""
            while part := await response.content.readany():
                body += part
                if len(body) > _MOST_BYTES:
                    raise ValueError("the answer is too large")
        return body
