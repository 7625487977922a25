"""AWS credentials, found and renewed by botocore in a thread, never on the event loop.

Sources are tried in botocore's order: environment, profile, web identity, container, instance role. botocore
is imported at the first request to SageMaker, since it costs 0.11 s of CPU time and 8 MB.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final, Protocol

from gateway.http.aws.sigv4 import Credentials

logger = logging.getLogger(__name__)

FRESH_SECONDS: Final = 60.0
"""After this long botocore is asked again, while requests go on with the known credentials."""
USABLE_SECONDS: Final = 300.0
"""After this long a request waits for new credentials. botocore renews at least ten minutes before expiry, so
credentials of this age are still valid."""


class NoCredentials(Exception):
    """The environment has no AWS credentials, or botocore cannot read them; the cause says why."""


class CredentialSource(Protocol):
    """A source of credentials for signatures."""

    async def current(self) -> Credentials:
        """Return the current credentials. Raises NoCredentials."""

    def expired(self) -> None:
        """Note that the last credentials were refused as expired: the next `current` reads them again."""


class BotocoreCredentials:
    """The credentials of the process's environment."""

    def __init__(self) -> None:
        self._session: Any = None
        self._known: Credentials | None = None
        self._asked = 0.0
        self._renewal: asyncio.Task[Credentials] | None = None

    async def current(self) -> Credentials:
        age = time.monotonic() - self._asked
        if self._known is not None and age < FRESH_SECONDS:
            return self._known
        renewal = self._renew()
        if self._known is not None and age < USABLE_SECONDS:
            return self._known
        # Several requests may wait for the renewal, so one cancelled request must not cancel it.
        return await asyncio.shield(renewal)

    def expired(self) -> None:
        self._asked = 0.0

    def _renew(self) -> asyncio.Task[Credentials]:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._ask(), name="AWS credentials")
            self._renewal.add_done_callback(_report)
        return self._renewal

    async def _ask(self) -> Credentials:
        self._known = await asyncio.to_thread(self._resolve)
        self._asked = time.monotonic()
        return self._known

    def _resolve(self) -> Credentials:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        try:
            self._session = self._session or Session()
            found = self._session.get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except BotoCoreError as error:
            raise NoCredentials(str(error)) from error
        if frozen is None:
            raise NoCredentials("botocore found none")
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def _report(task: asyncio.Task[Credentials]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning(
            "no AWS credentials: give the gateway AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web "
            "identity, or a role of its container or instance: %r",
            error.__cause__ or error,
        )
