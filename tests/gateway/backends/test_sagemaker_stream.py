"""An event stream under any damage: a prefix of the right events, then an error; never a wrong byte."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.lmi import LineTranslator
from gateway.backends.sagemaker import SageMakerStream
from gateway.backends.upstream import UpstreamStream
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout
from sagemaker_local import frames


class Chunks:
    """Stands for a response under way."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = [chunk for chunk in chunks if chunk]
        self.closed = False

    async def read(self) -> bytes:
        return self._chunks.pop(0) if self._chunks else b""

    def close(self) -> None:
        self.closed = True


def line(text: str, finish: str | None = None) -> bytes:
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    return orjson.dumps({"model": "lmi", "choices": choices}) + b"\n"


LINES = [*(line(f"word-{number} ") for number in range(6)), line("end", "stop"), b"\n"]
WHOLE = b"".join(LINES)
RIGHT = b"".join(
    b"data: " + one.strip().replace(b'"lmi"', b'"bot"') + b"\n\n" for one in LINES if one.strip()
)


def follow(chunks: list[bytes]) -> tuple[bytes, GatewayError | None]:
    """Return the bytes sent to the client, and the error that ends them, if any."""

    async def work() -> tuple[bytes, GatewayError | None]:
        lines = LineTranslator("r-1", "bot", chat=True)
        stream = SageMakerStream(cast(UpstreamStream, Chunks(chunks)), lines)
        out = b""
        try:
            while part := await stream.read():
                out += part
        except GatewayError as error:
            with pytest.raises(GatewayError):
                await stream.read()
            return out, error
        return out, None

    return asyncio.run(asyncio.wait_for(work(), 5))


def framed(sizes: list[int]) -> bytes:
    """The lines in parts that do not care where a line ends."""
    data, at, out = WHOLE, 0, b""
    for size in [*sizes, len(WHOLE)]:
        if at < len(data):
            out += frames.part(data[at : at + size])
            at += size
    return out


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


SIZES = st.lists(st.integers(1, 200), max_size=12)
CUTS = st.lists(st.integers(0, 2000), max_size=10)


@settings(max_examples=150, deadline=None)
@given(SIZES, CUTS)
def test_parts_lines_and_reads_need_not_align(sizes: list[int], cuts: list[int]) -> None:
    assert follow(split(framed(sizes), cuts)) == (RIGHT + b"data: [DONE]\n\n", None)


@settings(max_examples=300, deadline=None)
@given(SIZES, CUTS, st.data())
@pytest.mark.costly("a property over many streams")
def test_any_damage_ends_the_stream_with_an_error(
    sizes: list[int], cuts: list[int], data: st.DataObject
) -> None:
    stream = bytearray(framed(sizes))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]))
    at = data.draw(st.integers(0, len(stream) - 1))
    match kind:
        case "flip":
            stream[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del stream[at:]
        case "insert":
            stream[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        case "remove":
            del stream[at : at + data.draw(st.integers(1, 20))]
    sent, error = follow(split(bytes(stream), cuts))
    if error is None:
        # Only a cut, at a part's end and behind the last chunk, leaves nothing to miss.
        assert kind in ("cut", "remove", "insert")
        assert sent == RIGHT + b"data: [DONE]\n\n"
    else:
        assert RIGHT.startswith(sent)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    ("kind", "body", "error"),
    [
        ("ModelStreamError", {"ErrorCode": "StreamBroken", "Message": "m"}, UpstreamBroken),
        ("ModelStreamError", {"ErrorCode": "ModelInvocationTimeExceeded", "Message": "m"}, UpstreamTimeout),
        ("InternalStreamFailure", {"Message": "m"}, UpstreamBroken),
    ],
)
def test_what_came_before_a_failure_in_the_same_read_is_passed_on(
    before: int, kind: str, body: dict[str, Any], error: type[GatewayError]
) -> None:
    data = b"".join(frames.part(one) for one in LINES[:before]) + frames.exception(kind, body)
    sent, failure = follow([data + frames.part(LINES[before])])
    assert type(failure) is error
    assert sent == b"".join(RIGHT.splitlines(keepends=True)[: 2 * before])
