"""Parses a request's head, and refuses everything ambiguous (RFC 9112 to the letter).

No bare LF or CR, no folded lines, no space before a colon, no control characters, one Content-Length of
digits, `chunked` as the only Transfer-Encoding, never both, one Host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from gateway.http.server.limits import HEADERS

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
FIELD: Final = _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*"
"""Pattern of one header line, without its end."""
_HEAD: Final = re.compile(
    rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])\r\n((?:" + FIELD + rb"\r\n)*)\r\n"
)
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection", b"host", b"expect"})
"""Headers that the server itself uses."""
_LENGTH_DIGITS: Final = 15


class Refused(Exception):
    """The server answers the request itself, and closes the connection.

    Attributes:
        status: the answer's status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Head:
    """A request without its body.

    Attributes:
        path: decoded, without its query; `raw_path` is as received.
        headers: names in lower case.
        length: bytes of the body; None if it is chunked.
        keep_alive: True if the client wants to reuse the connection.
        expects_continue: True if the client waits for 100 Continue before it sends its body.
    """

    method: str
    path: str
    raw_path: bytes
    query: bytes
    http_version: str
    headers: list[tuple[bytes, bytes]]
    length: int | None
    keep_alive: bool
    expects_continue: bool


def parse(data: bytes) -> Head:
    """Parse a head, including its empty line.

    Raises:
        Refused: the head is malformed or ambiguous.
    """
    found = _HEAD.fullmatch(data)
    if found is None:
        raise Refused(400, "The request's head is malformed.")
    method, target, minor, block = found.groups()
    lines = block.split(b"\r\n")
    lines.pop()
    if len(lines) > HEADERS:
        raise Refused(431, f"The request has more than {HEADERS} headers.")
    headers: list[tuple[bytes, bytes]] = []
    framing: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        headers.append((name, value))
        if name in _FRAMING:
            framing[name] = _once(framing, name, value)
    raw_path, _, query = _origin_form(method, target).partition(b"?")
    path = raw_path.decode("ascii")
    modern = minor == b"1"
    if modern and b"host" not in framing:
        raise Refused(400, "The request has no Host.")
    connection = framing[b"connection"].lower() if b"connection" in framing else b""
    return Head(
        method=method.decode("ascii"),
        path=unquote(path) if "%" in path else path,
        raw_path=raw_path,
        query=query,
        http_version="1.1" if modern else "1.0",
        headers=headers,
        length=_length(framing, modern=modern),
        keep_alive=_keeps(connection, modern=modern),
        expects_continue=modern and framing.get(b"expect", b"").lower() == b"100-continue",
    )


def _once(framing: dict[bytes, bytes], name: bytes, value: bytes) -> bytes:
    """Return the header's value, joined for a repeated list. Raises Refused for other repeated headers."""
    if name not in framing:
        return value
    if name == b"connection":
        return framing[name] + b"," + value
    raise Refused(400, f"The request has more than one {name.decode()}.")


def _length(framing: dict[bytes, bytes], *, modern: bool) -> int | None:
    """Return the body's length; None if chunked. Raises Refused if the body's end is ambiguous."""
    length, encoding = framing.get(b"content-length"), framing.get(b"transfer-encoding")
    if encoding is not None:
        if length is not None:
            raise Refused(400, "The request has both a Content-Length and a Transfer-Encoding.")
        if not modern or encoding.lower() != b"chunked":
            raise Refused(400, "Transfer-Encoding may be chunked alone, in HTTP/1.1.")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > _LENGTH_DIGITS:
        raise Refused(400, "Content-Length is not a number.")
    return int(length)


def _keeps(connection: bytes, *, modern: bool) -> bool:
    if not connection:
        return modern
    options = {option.strip() for option in connection.split(b",")}
    return b"close" not in options if modern else b"keep-alive" in options


def _origin_form(method: bytes, target: bytes) -> bytes:
    """Return the target as path and query. Raises Refused for targets of a forward proxy."""
    if target[:1] == b"/" or (target == b"*" and method == b"OPTIONS"):
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None or method == b"CONNECT":
        raise Refused(400, "The request's target is no path.")
    rest = target[absolute.end() :]
    return rest if rest[:1] == b"/" else b"/" + rest
