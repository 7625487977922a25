"""The client of the REST API: one object that groups its parts."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from graftwork.adapters import Adapters
from graftwork.aliases import Aliases
from graftwork.billing import Billing
from graftwork.chat import ChatStream, chat_request
from graftwork.errors import ConfigurationError
from graftwork.keys import Keys
from graftwork.models import Identity, UsageReport
from graftwork.transport import Transport
from graftwork.uploads import Unfinished, Uploads

URL_VARIABLE: Final = "GRAFTWORK_API_URL"
KEY_VARIABLE: Final = "GRAFTWORK_API_KEY"


class Client:
    """Graftwork's REST API, and chats through its gateway.

    Args:
        url: base URL of the control plane, such as `https://graftwork.example`; GRAFTWORK_API_URL by default.
        api_key: `gw_...` with scope `manage` (chats need `inference`); GRAFTWORK_API_KEY if left out.
        gateway_url: ends in `/v1`; fetched from the control plane if left out.
        timeout: seconds to wait for more of an answer.
        retries: how often a request is repeated after no answer or a transient failure.
        unfinished: a file that records interrupted uploads, so that another process can resume them.
        transport: an httpx transport, for tests.

    Raises:
        ConfigurationError: no URL or no key is configured.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        gateway_url: str | None = None,
        timeout: float = 60.0,
        retries: int = 4,
        unfinished: Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        url = url or os.environ.get(URL_VARIABLE)
        self._key = api_key or os.environ.get(KEY_VARIABLE) or ""
        if not url:
            raise ConfigurationError(
                f"no URL is configured: log in with `graftwork login --url ...`, or set {URL_VARIABLE}"
            )
        if not self._key:
            raise ConfigurationError(
                f"no API key is configured: log in with `graftwork login`, or set {KEY_VARIABLE}"
            )
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"the URL must begin with http:// or https://, got {url!r}")
        base = url.rstrip("/").removesuffix("/api/v1") + "/api/v1"
        self._transport = Transport(base, self._key, timeout=timeout, retries=retries, transport=transport)
        self._gateway_url = gateway_url
        self._gateway = httpx.Client(timeout=httpx.Timeout(timeout, connect=10.0))
        self.adapters = Adapters(self._transport, Uploads(self._transport, Unfinished(unfinished)))
        self.aliases = Aliases(self._transport)
        self.keys = Keys(self._transport)
        self.billing = Billing(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()
        self._gateway.close()

    def etag(self, path: str) -> str:
        """Returns the ETag of the resource at a path such as `/keys/<public id>`, for an `etag=` argument."""
        return self._transport.etag(path)

    def whoami(self) -> Identity:
        """Returns the key's identity: its tenant, role and permissions."""
        return self._transport.read(Identity, "/me")

    def usage(self, start: dt.date, end: dt.date, *, group_by: Sequence[str] = ("day",)) -> UsageReport:
        """Returns tokens and price from `start` to `end`, UTC days, both included."""
        query = {"start": start.isoformat(), "end": end.isoformat(), "group_by": ",".join(group_by)}
        return self._transport.read(UsageReport, "/usage", **query)

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], **options: Any) -> ChatStream:
        """Opens a streaming chat: `with client.chat(...) as stream: for text in stream: ...`.

        Args:
            options: further parameters of OpenAI's chat completions, such as `temperature` or `max_tokens`.
        """
        if self._gateway_url is None:
            self._gateway_url = self.whoami().gateway_url
        url = self._gateway_url.rstrip("/")
        request = chat_request(self._gateway, url, self._key, model, messages, options)
        return ChatStream(self._gateway, request)
