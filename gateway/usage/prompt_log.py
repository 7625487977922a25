"""Logs prompts and answers of tenants that opted in, sealed for the tenant.

The route table has the public key of a tenant that logs prompts; without one nothing here is called. Records
wait in memory for a moment, are sealed (X25519, HKDF-SHA256, AES-256-GCM) and go to a bounded Redis stream.
The gateway can seal but not open: the control plane has the private key, and destroys it when the tenant
opts out. A request never waits for this: records that cannot be shipped in time are dropped and counted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import orjson
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.prompt_log import PROMPT_FORM, PROMPT_INFO, PROMPT_STREAM
from gateway.http.asgi import Message, Send

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 256 << 10
"""Most bytes kept of a request, and of an answer; longer ones are cut and marked as cut."""
_QUEUE_BYTES: Final = 32 << 20
_STREAM_LENGTH: Final = 20_000
"""Most entries that wait for the control plane, roughly; the oldest are dropped."""
_STREAM_BYTES: Final = 64 << 20
"""Bytes of Redis's memory beyond which nothing is added: usage events and limits need the rest."""
_IMAGE_DATA: Final = re.compile(rb"(?i)(data:[a-z]{1,20}\\?/[a-z0-9.+-]{1,40};base64,)([a-z0-9+/=\\]{65,})")
"""Matches a data URL in JSON, where a slash may be escaped."""
_SAMPLES: Final = 50
_BATCH: Final = 100
_IDLE_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 1.0


@dataclass(slots=True)
class Record:
    """A running request. `answer` collects the data that is sent to its client."""

    key: str
    tenant: str
    request_id: str
    path: str
    request: bytes
    cut: bool
    at_ms: int
    answer: list[bytes] = field(default_factory=list)
    size: int = 0

    def through(self, send: Send) -> Send:
        """Return a `send` that also records the body."""

        async def recorded(message: Message) -> None:
            if body := message.get("body"):
                self._take(body)
            await send(message)

        return recorded

    def _take(self, body: bytes) -> None:
        room = MOST_BYTES - self.size
        if room > 0:
            self.answer.append(body[:room])
        self.cut = self.cut or len(body) > room
        self.size += min(len(body), room)


class PromptLog:
    """Ships records; `run` it as a task."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: deque[Record] = deque()
        self._bytes = 0
        self.num_dropped = 0

    def begin(self, key: str, tenant: str, request_id: str, path: str, body: bytes) -> Record:
        """Start the record of a request of `tenant`, to be sealed for `key`; images are left out."""
        now = time.time_ns() // 1_000_000
        body = without_images(body)
        return Record(key, tenant, request_id, path, body[:MOST_BYTES], len(body) > MOST_BYTES, now)

    def end(self, record: Record) -> None:
        """Queue the record for shipping at the request's end, complete or not."""
        size = len(record.request) + record.size
        if self._bytes + size > _QUEUE_BYTES:
            self.num_dropped += 1
            return
        self._bytes += size
        self._waiting.append(record)

    async def run(self) -> None:
        """Ship until cancelled. While Redis is away, records wait as long as there is room."""
        away = False
        while True:
            try:
                await self.ship()
                away = False
            except (RedisError, OSError) as error:
                if not away:
                    logger.warning("prompt log: Redis is unreachable; prompts wait in memory: %s", error)
                away = True
            await asyncio.sleep(_RETRY_SECONDS if away else _IDLE_SECONDS)

    async def ship(self) -> None:
        """Ship all waiting records. Raises RedisError; unshipped records go on waiting."""
        while self._waiting:
            batch = [self._waiting[at] for at in range(min(_BATCH, len(self._waiting)))]
            if (await self._redis.memory_usage(PROMPT_STREAM, samples=_SAMPLES) or 0) < _STREAM_BYTES:
                await self._add(batch)
            else:
                self.num_dropped += len(batch)
            for record in batch:
                self._waiting.popleft()
                self._bytes -= len(record.request) + record.size
        if self.num_dropped:
            logger.warning("prompt log: %d prompts dropped for lack of space", self.num_dropped)
            self.num_dropped = 0

    async def _add(self, batch: list[Record]) -> None:
        # Sealing takes some 0.2 ms each, for which no request should wait.
        sealed = await asyncio.to_thread(_seal_all, batch)
        async with self._redis.pipeline(transaction=False) as pipe:
            for record, text in zip(batch, sealed, strict=True):
                if text is not None:
                    pipe.xadd(
                        PROMPT_STREAM,
                        {
                            "tenant": record.tenant,
                            "request": record.request_id,
                            "at": record.at_ms,
                            "sealed": text,
                        },
                        maxlen=_STREAM_LENGTH,
                        approximate=True,
                    )
            await pipe.execute()


def without_images(body: bytes) -> bytes:
    """Return a request with the data of each data URL replaced by its length in base64 characters."""
    if b";base64," not in body:
        return body
    return _IMAGE_DATA.sub(lambda match: b"%b<%d characters>" % (match[1], len(match[2])), body)


def _seal_all(batch: list[Record]) -> list[bytes | None]:
    return [_sealed(record) for record in batch]


def _sealed(record: Record) -> bytes | None:
    """Return the sealed record, or None if the tenant's key is invalid."""
    try:
        return seal(record)
    except ValueError as error:
        logger.error("prompt log: tenant %s has an invalid key, record dropped: %s", record.tenant, error)
        return None


def seal(record: Record) -> bytes:
    """Return the format byte, a hash of the tenant's key, the record's own key, a nonce, and the ciphertext.

    Raises ValueError where the tenant's key is malformed.
    """
    public = base64.urlsafe_b64decode(record.key)
    own = X25519PrivateKey.generate()
    ours = own.public_key().public_bytes_raw()
    shared = own.exchange(X25519PublicKey.from_public_bytes(public))
    secret = HKDF(SHA256(), 32, salt=ours + public, info=PROMPT_INFO).derive(shared)
    told = {
        "path": record.path,
        "request": record.request.decode(errors="replace"),
        "answer": b"".join(record.answer).decode(errors="replace"),
        "cut": record.cut,
    }
    nonce = os.urandom(12)
    place = f"{record.tenant}/{record.request_id}".encode()
    text = AESGCM(secret).encrypt(nonce, zlib.compress(orjson.dumps(told), 1), place)
    return b"".join((PROMPT_FORM, public[:8], ours, nonce, text))
