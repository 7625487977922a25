"""Streaming chats through the gateway's OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from graftwork.errors import ConnectionFailedError, GraftworkError, api_error
from graftwork.transport import USER_AGENT, decoded


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """Billed tokens of the chat."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Failure(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: _Failure | None = None


class ChatStream:
    """Streams one answer's text; `usage`, `finish_reason` and `served_model` are set at its end."""

    def __init__(self, http: httpx.Client, request: httpx.Request) -> None:
        self._http, self._request = http, request
        self._response: httpx.Response | None = None
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.served_model: str | None = None

    def __enter__(self) -> Self:
        try:
            self._response = self._http.send(self._request, stream=True)
        except httpx.TransportError as error:
            raise ConnectionFailedError(f"{self._request.url} does not answer ({error})") from error
        if self._response.status_code >= 400:
            body, headers = self._response.read(), self._response.headers
            raise api_error(self._response.status_code, body, headers.get("retry-after"))
        self.served_model = self._response.headers.get("x-graftwork-served-model")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response is not None:
            self._response.close()

    def __iter__(self) -> Iterator[str]:
        """Yields the text in order. Raises GraftworkError when the stream breaks."""
        assert self._response is not None, "use it as `with client.chat(...) as stream:`"
        try:
            for line in self._response.iter_lines():
                if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
                    continue
                yield from self._texts(decoded(_Chunk, data.encode()))
        except httpx.TransportError as error:
            raise ConnectionFailedError(
                f"the stream was interrupted ({error}): send the request again"
            ) from error

    def _texts(self, chunk: _Chunk) -> Iterator[str]:
        if chunk.error is not None:
            raise GraftworkError(chunk.error.message)
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.delta.content:
                yield choice.delta.content


def chat_request(
    http: httpx.Client,
    gateway_url: str,
    api_key: str,
    model: str,
    messages: Sequence[Mapping[str, str]],
    options: Mapping[str, Any],
) -> httpx.Request:
    """Builds the request for a streaming chat completion."""
    body = {
        "model": model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    headers = {"Authorization": f"Bearer {api_key}", "User-Agent": USER_AGENT}
    return http.build_request("POST", f"{gateway_url}/chat/completions", json=body, headers=headers)
