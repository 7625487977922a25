"""Requests that are too large, too many, too deep or compressed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest

from gateway.api.bodies import BODY_BYTES
from gateway.completions import INLINE_BYTES
from tests.gateway.conftest import ACME, GatewayProcess
from tests.gateway.security.conftest import CHAT, connect, exchange, read_all, serves
from tests.gateway.test_app import ask

KEY = {"authorization": f"Bearer {ACME}"}


def post(gateway: GatewayProcess, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(
        gateway.url + "/v1/chat/completions", content=content, headers={**KEY, **headers}, timeout=60
    )


@pytest.mark.parametrize(
    "headers",
    [
        b"x-long: " + b"a" * 2_000_000 + b"\r\n",
        b"".join(b"x-%d: a\r\n" % number for number in range(200)),
        b"".join(b"x-%d: %s\r\n" % (number, b"a" * 20_000) for number in range(90)),
    ],
)
def test_headers_have_a_largest_size_and_number(steady: GatewayProcess, headers: bytes) -> None:
    with connect(steady) as connection:
        try:
            connection.sendall(CHAT + headers + b"content-length: 0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            answer = read_all(connection)
            assert answer[:12] in (b"HTTP/1.1 431", b"")
    assert serves(steady)


def test_an_address_has_a_largest_size(steady: GatewayProcess) -> None:
    answer = exchange(steady, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer[:12] in (b"HTTP/1.1 414", b"HTTP/1.1 431", b"HTTP/1.1 400", b"")


def test_a_body_that_is_said_to_be_too_large_is_not_waited_for(steady: GatewayProcess) -> None:
    with connect(steady) as connection:
        connection.sendall(CHAT + b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % (BODY_BYTES + 1))
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_chunks_have_a_largest_sum(steady: GatewayProcess) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(BODY_BYTES // (1 << 20) + 1):
            yield b" " * (1 << 20)

    try:
        answer = httpx.post(steady.url + "/v1/chat/completions", content=chunks(), headers=KEY, timeout=60)
    except httpx.TransportError:
        return  # the gateway closed while more was sent
    assert answer.status_code == 413


def test_a_body_that_is_parsed_in_a_thread_is_answered_like_others(steady: GatewayProcess) -> None:
    text = json.dumps({"tokens": 1, "filler": "x" * (2 * INLINE_BYTES)})
    body = json.dumps({"model": "bot", "messages": [{"role": "user", "content": text}]}).encode()
    assert INLINE_BYTES < len(body) < BODY_BYTES
    assert post(steady, body).status_code == 200
    assert post(steady, body[:-1]).status_code == 400


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "GZIP", "identity, gzip"])
def test_a_compressed_body_is_refused(steady: GatewayProcess, encoding: str) -> None:
    answer = post(steady, gzip.compress(b"{}"), **{"content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")


def test_no_encoding_may_be_named(steady: GatewayProcess) -> None:
    body = json.dumps({"model": "bot", "messages": ask(tokens=1)}).encode()
    assert post(steady, body, **{"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 2_000_000,
        b'{"model":"bot","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"bot","messages":[{"role":"user","content":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]}",
        b'{"model":"bot","messages":[' + b"{}," * 600_000 + b"{}]}",
        b'{"model":"bot","messages":[],"x":' + b"9" * 1_000_000 + b"}",
        b'{"model":"' + b"m" * 2_000_000 + b'","messages":[]}',
        b"{" + b",".join(b'"k%d":1' % number for number in range(180_000)) + b"}",
        b'{"model":"bot","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"bot","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b"NaN",
        b'{"model":"bot","messages":[],"temperature":1e400}',
    ],
)
def test_huge_and_deep_json_is_refused_in_few_words(steady: GatewayProcess, body: bytes) -> None:
    answer = post(steady, body)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 2000
    assert answer.json()["error"]["message"]
    assert serves(steady)


def test_a_long_name_of_a_model_is_cut_in_the_answer(steady: GatewayProcess) -> None:
    answer = post(steady, json.dumps({"model": "m" * 100_000, "messages": ask(tokens=1)}).encode())
    assert answer.status_code == 404
    assert len(answer.content) < 2000
