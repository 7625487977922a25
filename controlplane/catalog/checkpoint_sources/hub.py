"""A model repository of the Hugging Face hub, or of what speaks its API, at one commit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import SplitResult, quote

import httpx2
from django.conf import settings

from controlplane.artifacts.store import ByteStream
from controlplane.catalog.checkpoint_sources.base import refusal
from controlplane.catalog.selectors import hub_token
from controlplane.errors import OutgoingRefusedError, UnavailableError
from controlplane.platform.http.outgoing import outgoing_client

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SLOWEST: Final = 1 << 20
"""Lowest average rate of a file, in bytes per second."""


class HubCheckpoint:
    """Files of a repository; `uri` holds the commit of the revision at the first request."""

    def __init__(self, parts: SplitResult, token: str) -> None:
        """Raises InvalidInputError."""
        name, _, revision = parts.path.strip("/").partition("@")
        self._repository, self._revision = f"{parts.netloc}/{name}", revision or "main"
        texts = (_REPOSITORY.fullmatch(parts.netloc), _REPOSITORY.fullmatch(name))
        if not all(texts) or _REVISION.fullmatch(self._revision) is None or parts.query or parts.fragment:
            raise refusal("write a hub source as hf://owner/name or hf://owner/name@revision")
        self._token = token or hub_token(repository=self._repository)
        self._sizes: dict[str, int] | None = None

    @property
    def uri(self) -> str:
        return f"hf://{self._repository}@{self._revision}"

    def sizes(self) -> dict[str, int]:
        if self._sizes is None:
            value = self._description()
            commit = value.get("sha")
            if not isinstance(commit, str) or _COMMIT.fullmatch(commit) is None:
                raise UnavailableError(f"the hub returned no commit of {self.uri}; try again")
            self._revision = commit
            self._sizes = {
                str(item["rfilename"]): int(item.get("size") or 0)
                for item in value.get("siblings", ())
                if "/" not in item["rfilename"] and not item["rfilename"].startswith(".")
            }
        return self._sizes

    def read_range(self, name: str, start: int, size: int) -> bytes:
        with self._body(name, {"Range": f"bytes={start}-{start + size - 1}"}) as stream:
            return stream.read(size)

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        with self._body(name, {}) as stream:
            yield stream

    @contextmanager
    def _body(self, name: str, options: Mapping[str, str]) -> Iterator[ByteStream]:
        total = 60 + self.sizes().get(name, 0) / _SLOWEST
        url = f"{settings.GRAFTWORK.hub_endpoint}/{self._repository}/resolve/{self._revision}/{quote(name)}"
        headers = {"Accept-Encoding": "identity", **self._authorization, **options}
        with (
            _answers(self.uri),
            outgoing_client(total=total, follow_redirects=True) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            if not (options and response.status_code == 206):
                _check(response, f"{self.uri}/{name}")
                if options:
                    raise UnavailableError(f"the hub returned all of {self.uri}/{name}, a part was requested")
            yield _Body(response)

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _description(self) -> dict[str, Any]:
        where = f"{self._repository}/revision/{quote(self._revision, safe='')}?blobs=true"
        with _answers(self.uri), outgoing_client(follow_redirects=True) as client:
            url = f"{settings.GRAFTWORK.hub_endpoint}/api/models/{where}"
            response = client.get(url, headers=self._authorization)
            _check(response, self.uri)
            try:
                value = response.json()
            except ValueError as error:
                raise UnavailableError("the hub's answer is not a model description; try again") from error
        return value if isinstance(value, dict) else {}


class _Body:
    """A streamed response with the interface of a file."""

    def __init__(self, response: httpx2.Response) -> None:
        self._chunks, self._rest = response.iter_raw(), b""

    def read(self, size: int = -1, /) -> bytes:
        parts, count = [self._rest], len(self._rest)
        while size < 0 or count < size:
            if not (chunk := next(self._chunks, b"")):
                break
            parts.append(chunk)
            count += len(chunk)
        data = b"".join(parts)
        cut = len(data) if size < 0 else size
        data, self._rest = data[:cut], data[cut:]
        return data


def _check(response: httpx2.Response, what: str) -> None:
    if response.status_code == 429 or response.status_code >= 500:
        raise UnavailableError(f"the hub returned status {response.status_code} for {what}; try again")
    if response.status_code in (401, 403):
        raise refusal(
            f"the hub returned status {response.status_code} for {what}: for a private or gated repository,"
            " accept its terms on the hub, and set hub_token to a token that can read it"
        )
    if response.status_code != 200:
        raise refusal(
            f"the hub returned status {response.status_code} for {what}: check its name and revision"
        )


@contextmanager
def _answers(uri: str) -> Iterator[None]:
    try:
        yield
    except OutgoingRefusedError as error:
        raise refusal(f"{uri} cannot be read: {error}; see GRAFTWORK_OUTGOING_ALLOW") from error
    except httpx2.HTTPError as error:
        raise UnavailableError(f"the hub does not answer, try again: {type(error).__name__}") from error
