"""HTTP downloads through the guarded client, with a time limit and a minimum rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx2

from controlplane.adapters.sources.base import MissingFileError, SourceRefusedError
from controlplane.errors import RefusedError, UnavailableError
from controlplane.platform.http.outgoing import HEAD_S, outgoing_client

LONGEST_S: Final = 1200.0
"""Seconds for one file: 2 GiB at 1.8 MB/s."""
SLOWEST: Final = 16 << 10
"""Bytes per second that a source must send on average after GRACE_S; a slower source would block a worker."""
GRACE_S: Final = 60.0
_ANSWER: Final = 4 << 10
"""Bytes of an error response that are kept; the first lines give the reason."""
_OTHERWISE: Final = "register the adapter again, or upload the files"


class BodyStream:
    """A response's body as a stream that is read."""

    def __init__(self, response: httpx2.Response) -> None:
        # Without a size, iter_raw yields bytes as they arrive; with one it would wait for full chunks.
        self._pieces, self._rest = response.iter_raw(), b""
        self._opened, self._waited, self._received = time.monotonic(), 0.0, 0

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes, b"" at the end. Raises RefusedError if the source is too slow."""
        while not self._rest:
            if (piece := self._next()) is None:
                return b""
            self._rest = piece
        cut = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:cut], self._rest[cut:]
        return data

    def _next(self) -> bytes | None:
        began = time.monotonic()
        try:
            piece = next(self._pieces, None)
        except httpx2.TimeoutException as error:
            if time.monotonic() - self._opened < LONGEST_S - HEAD_S:
                raise
            raise RefusedError(
                f"the file did not arrive within {LONGEST_S:.0f} seconds: {_OTHERWISE}"
            ) from error
        # The time that the store takes is not the source's fault.
        self._waited += time.monotonic() - began
        self._received += len(piece or b"")
        if piece and self._waited > GRACE_S and self._received < SLOWEST * self._waited:
            raise RefusedError(f"the source sends less than {SLOWEST} bytes per second: {_OTHERWISE}")
        return piece


@contextmanager
def download(url: str, *, what: str) -> Iterator[BodyStream]:
    """Open the response to a GET of `url`; redirects are not followed.

    Raises, here and while it is read:
        MissingFileError: 404, with the beginning of its body.
        SourceRefusedError: any other refusal, with the beginning of its body.
        RefusedError: an address that is not allowed, or bytes that come too slowly.
        UnavailableError: 429, 5xx or no answer.
    """
    plain = {"Accept-Encoding": "identity"}
    try:
        with outgoing_client(total=LONGEST_S) as client, client.stream("GET", url, headers=plain) as response:
            if response.status_code == 404:
                raise MissingFileError(what, answer=BodyStream(response).read(_ANSWER))
            _check_status(response, what)
            yield BodyStream(response)
    except httpx2.HTTPError as error:
        # The error's text is left out, since it may hold a signed URL.
        raise UnavailableError(f"{what} does not answer, try again: {type(error).__name__}") from error


def _check_status(response: httpx2.Response, what: str) -> None:
    status = response.status_code
    if status == 429 or status >= 500:
        raise UnavailableError(f"{what} returned status {status}; try again")
    if status != 200:
        text = f"{what} returned status {status}: check the location and the credential"
        raise SourceRefusedError(text, answer=BodyStream(response).read(_ANSWER))
