"""Polls the figures of all copies at once within one deadline, and shares them through Redis.

However many pages are open, a copy is polled once in SHARED_SECONDS. The last answer is kept with its time,
so that a page can show since when a copy is silent, and its last figures.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx
from django.conf import settings
from redis.exceptions import RedisError

from controlplane.deployments.models import Copy
from controlplane.errors import UnsealError
from controlplane.fleet.figures import Figures, read_figures
from controlplane.platform.http.tls import tls_context
from controlplane.platform.task_signs import connection

logger = logging.getLogger(__name__)

SHARED_SECONDS: Final = 3.0
_DEADLINE_SECONDS: Final = 2.0
"""Time limit for all copies together, however many are silent."""
_ANSWER_SECONDS: Final = 1.5
_AT_ONCE: Final = 32
_KEY: Final = "graftwork:fleet:looks"
"""Redis hash: copy -> JSON of a PolledCopy."""
_KEEP_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class PolledCopy:
    """The state of a copy at its last poll.

    Attributes:
        asked_at: Unix seconds of the last poll; None for a copy that cannot be polled.
        figures: as of `answered_at`; None if it never answered or reports none.
        error: why the last poll failed; '' if it succeeded.
        silent_since: Unix seconds of the first failed poll since the last answer; None while it answers.
    """

    asked_at: float | None = None
    answered_at: float | None = None
    figures: Figures | None = None
    error: str = ""
    silent_since: float | None = None

    @property
    def answers(self) -> bool:
        return self.asked_at is not None and not self.error

    def to_json(self) -> str:
        return json.dumps(
            {
                "asked_at": self.asked_at,
                "answered_at": self.answered_at,
                "error": self.error,
                "silent_since": self.silent_since,
                "figures": self.figures and self.figures.to_dict(),
            }
        )


def copies_poll(copies: Sequence[Copy]) -> dict[str, PolledCopy]:
    """Poll the copies, or use shared results; return the state by id. SageMaker's copies get an empty one."""
    askable = [copy for copy in copies if copy.url and copy.kind != Copy.Kind.SAGEMAKER]
    known = _known([copy.pk for copy in askable])
    now = time.time()
    due = [copy for copy in askable if not _fresh(known.get(copy.pk), now)]
    found = _ask_all(due, known)
    _keep(found)
    return {copy.pk: found.get(copy.pk) or known.get(copy.pk) or PolledCopy() for copy in copies}


def _fresh(polled: PolledCopy | None, now: float) -> bool:
    return polled is not None and polled.asked_at is not None and 0 <= now - polled.asked_at < SHARED_SECONDS


def _ask_all(copies: Sequence[Copy], known: dict[str, PolledCopy]) -> dict[str, PolledCopy]:
    if not copies:
        return {}
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(copies)), thread_name_prefix="fleet")
    futures = {copy.pk: pool.submit(_ask, copy) for copy in copies}
    done = wait(futures.values(), timeout=_DEADLINE_SECONDS).done
    pool.shutdown(wait=False, cancel_futures=True)
    now, found = time.time(), {}
    for copy in copies:
        before = known.get(copy.pk, PolledCopy())
        answer = futures[copy.pk].result() if futures[copy.pk] in done else "no response in time"
        if isinstance(answer, Figures):
            found[copy.pk] = PolledCopy(now, now, answer)
        else:
            since = before.silent_since or now
            found[copy.pk] = PolledCopy(now, before.answered_at, before.figures, answer, since)
    return found


def _ask(copy: Copy) -> Figures | str:
    """Return the copy's figures, or the reason for having none."""
    is_worker = copy.kind == Copy.Kind.WORKER
    try:
        answer = httpx.get(
            f"{copy.url}/metrics",
            headers=copy.request_headers,
            timeout=_ANSWER_SECONDS,
            trust_env=False,
            verify=tls_context(),
        )
    except UnsealError as error:
        return str(error)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{copy.url} does not respond: {error}"[:300]
    if not answer.is_success:
        return f"{copy.url}/metrics returned status {answer.status_code}"
    figures = read_figures(answer.text)
    if figures is None and not is_worker:
        # Another OpenAI-compatible server: it answers, but reports no known figures.
        return Figures()
    if figures is None:
        return f"{copy.url}/metrics returned no worker metrics: check that the URL is that of a worker"
    return figures


def _known(ids: Sequence[str]) -> dict[str, PolledCopy]:
    if not ids:
        return {}
    try:
        values = cast(list[bytes | None], _redis().hmget(_KEY, list(ids)))
    except RedisError as error:
        logger.debug("poll results are not shared: %s", error)
        return {}
    return {copy: _parse_poll(value) for copy, value in zip(ids, values, strict=True) if value is not None}


def _parse_poll(text: bytes) -> PolledCopy:
    try:
        value: dict[str, Any] = json.loads(text)
        figures = value.pop("figures")
        return PolledCopy(figures=None if figures is None else Figures.from_dict(figures), **value)
    except (ValueError, TypeError, KeyError):
        # Written by another release.
        return PolledCopy()


def _keep(found: dict[str, PolledCopy]) -> None:
    if not found:
        return
    try:
        _redis().hset(_KEY, mapping={copy: polled.to_json() for copy, polled in found.items()})
        _redis().expire(_KEY, _KEEP_SECONDS)
    except RedisError as error:
        logger.debug("poll results are not shared: %s", error)


def _redis() -> Any:
    return connection(settings.GRAFTWORK.redis_url)
