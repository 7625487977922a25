"""The frame parser compared with botocore's, at every split and with every kind of damage."""

from __future__ import annotations

import struct
import uuid
import zlib
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.aws.event_stream import EventStreamError, EventStreamParser, Message

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(
    lambda name: len(name.encode()) < 256
)
VALUES = st.one_of(
    st.booleans().map(lambda value: (0 if value else 1, b"")),
    st.integers(-(1 << 7), (1 << 7) - 1).map(lambda value: (2, struct.pack(">b", value))),
    st.integers(-(1 << 15), (1 << 15) - 1).map(lambda value: (3, struct.pack(">h", value))),
    st.integers(-(1 << 31), (1 << 31) - 1).map(lambda value: (4, struct.pack(">i", value))),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: (5, struct.pack(">q", value))),
    st.binary(max_size=300).map(lambda value: (6, struct.pack(">H", len(value)) + value)),
    st.text(st.characters(codec="utf-8"), max_size=60).map(
        lambda value: (7, struct.pack(">H", len(value.encode())) + value.encode())
    ),
    st.integers(0, 1 << 62).map(lambda value: (8, struct.pack(">q", value))),
    st.uuids().map(lambda value: (9, value.bytes)),
)


def frame(headers: dict[str, tuple[int, bytes]], payload: bytes) -> bytes:
    """A frame, written from the format's description alone."""
    lines = b"".join(
        struct.pack(">B", len(name.encode())) + name.encode() + struct.pack(">B", kind) + raw
        for name, (kind, raw) in headers.items()
    )
    prelude = struct.pack(">II", len(lines) + len(payload) + 16, len(lines))
    prelude += struct.pack(">I", zlib.crc32(prelude))
    message = prelude + lines + payload
    return message + struct.pack(">I", zlib.crc32(message))


def string(text: str) -> tuple[int, bytes]:
    return 7, struct.pack(">H", len(text.encode())) + text.encode()


PART = {
    ":event-type": string("PayloadPart"),
    ":content-type": string("application/octet-stream"),
    ":message-type": string("event"),
}
FRAMES = st.lists(
    st.one_of(
        st.builds(frame, st.dictionaries(NAMES, VALUES, max_size=6), st.binary(max_size=200)),
        st.builds(frame, st.just(PART), st.binary(max_size=200)),
    ),
    max_size=8,
)


def botocores(data: bytes) -> list[Message]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [Message(dict(message.headers), message.payload) for message in buffer]


@settings(max_examples=300, deadline=None)
@given(FRAMES, st.data())
@pytest.mark.costly("a property over many streams")
def test_any_split_gives_botocores_messages(frames: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    parser, messages = EventStreamParser(), list[Message]()
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        messages += parser.feed(whole[start:end])
    parser.end()
    assert messages == botocores(whole)
    assert len(messages) == len(frames)


def test_byte_by_byte() -> None:
    whole = frame(PART, b'{"a":1}\n') + frame({}, b"") + frame({"u": (9, uuid.UUID(int=5).bytes)}, b"x")
    parser, messages = EventStreamParser(), list[Message]()
    for at in range(len(whole)):
        messages += parser.feed(whole[at : at + 1])
    parser.end()
    assert messages == botocores(whole)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.data())
def test_a_changed_byte_never_becomes_data(payloads: list[bytes], data: st.DataObject) -> None:
    """The frames before the changed byte are parsed, nothing after it is, and an error is raised."""
    frames = [frame(PART, payload) for payload in payloads]
    whole = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(whole)))
    parser, seen = EventStreamParser(), list[Message]()

    def follow() -> None:
        seen.extend(parser.feed(bytes(whole[:cut])))
        seen.extend(parser.feed(bytes(whole[cut:])))
        parser.end()

    with pytest.raises(EventStreamError):
        follow()
    hurt = next(index for index in range(len(frames)) if at < sum(map(len, frames[: index + 1])))
    assert [message.payload for message in seen] == payloads[: len(seen)]
    assert len(seen) <= hurt
    with pytest.raises(EventStreamError):
        parser.feed(frames[0])


def test_frames_before_a_bad_one_are_not_lost() -> None:
    bad = bytearray(frame(PART, b"three"))
    bad[-1] ^= 1
    parser = EventStreamParser()
    messages = parser.feed(frame(PART, b"one") + frame(PART, b"two") + bytes(bad))
    assert [message.payload for message in messages] == [b"one", b"two"]
    with pytest.raises(EventStreamError, match="checksum"):
        parser.end()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=20))
def test_noise_is_refused_or_waits_and_never_yields(chunks: list[bytes]) -> None:
    parser = EventStreamParser()
    for chunk in chunks:
        try:
            assert parser.feed(chunk) == []
        except EventStreamError:
            return


def with_prelude(total: int, headers: int, rest: bytes = b"") -> bytes:
    prelude = struct.pack(">II", total, headers)
    return prelude + struct.pack(">I", zlib.crc32(prelude)) + rest


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (with_prelude(15, 0), "cannot have"),
        (with_prelude(40, 30), "cannot have"),
        (with_prelude((24 << 20) + 17, 0), "too large"),
        (with_prelude((1 << 32) - 1, (1 << 32) - 1), "too large"),
        (with_prelude(200 << 10, (128 << 10) + 1), "too large"),
        (frame({"a": (10, b"")}, b""), "unknown type 10"),
        (frame({"a": (7, struct.pack(">H", 9) + b"short")}, b""), "malformed"),
        (frame({"a": (5, b"\0\0")}, b""), "malformed"),
        (frame({"a": (7, struct.pack(">H", 1) + b"\xff")}, b""), "malformed"),
    ],
)
def test_what_no_frame_may_say_is_refused_at_once(data: bytes, said: str) -> None:
    """Also with correct checksums, and before the claimed frame length has arrived."""
    with pytest.raises(EventStreamError, match=said):
        EventStreamParser().feed(data)


def test_a_header_given_twice_is_refused() -> None:
    one = b"\x01a\x00"
    body = struct.pack(">II", 16 + 2 * len(one), 2 * len(one))
    body += struct.pack(">I", zlib.crc32(body)) + one + one
    with pytest.raises(EventStreamError, match="twice"):
        EventStreamParser().feed(body + struct.pack(">I", zlib.crc32(body)))


@pytest.mark.parametrize("cut", [1, 11, 12, 20, -1])
def test_an_end_within_a_frame_is_an_error(cut: int) -> None:
    parser: Any = EventStreamParser()
    assert parser.feed(frame(PART, b"hello")[:cut]) == []
    with pytest.raises(EventStreamError, match="within a frame"):
        parser.end()
