"""Idempotent requests in Redis: the current owner of each, and its answer.

Each is a hash that expires. `print` is the body's keyed hash and `owner` the running attempt. `state` is
open, kept or dropped (answered, but too large to be kept), and `answer` the sealed answer.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from gateway.idempotency.seal import Seal, StoredAnswer

KEEP_SECONDS: Final = 24 * 3600
LEASE_SECONDS: Final = 60
"""A dead gateway's claim ends after this; a live one renews it."""
MAX_KEPT_BYTES: Final = 256 << 20
"""Most sealed answers of one API key from one day in Redis; more are not kept."""
_PREFIX: Final = "graftwork:idempotency:"
_INLINE_BYTES: Final = 64 << 10

_CLAIM: Final = """
local held = redis.call('HMGET', KEYS[1], 'print', 'state', 'owner', 'answer')
if not held[1] then
    redis.call('HSET', KEYS[1], 'print', ARGV[1], 'state', 'open', 'owner', ARGV[2])
    redis.call('EXPIRE', KEYS[1], ARGV[3])
    return {'claimed'}
end
if held[1] ~= ARGV[1] then return {'other'} end
if held[3] == ARGV[2] then return {'claimed'} end
return {held[2], held[4]}
"""
"""KEYS: the request's. ARGV: the body's hash, the attempt, seconds of its lease."""

_SETTLE: Final = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] == 'free' then return redis.call('DEL', KEYS[1]) end
local state, size = ARGV[2], string.len(ARGV[3])
if state == 'kept' then
    local before = tonumber(redis.call('GET', KEYS[2]) or '0')
    if before + size > tonumber(ARGV[5]) then
        state = 'dropped'
    else
        redis.call('INCRBY', KEYS[2], size)
        if before == 0 then redis.call('EXPIRE', KEYS[2], ARGV[4]) end
        redis.call('HSET', KEYS[1], 'answer', ARGV[3])
    end
end
redis.call('HSET', KEYS[1], 'state', state)
redis.call('HDEL', KEYS[1], 'owner')
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""
"""KEYS: the request's, the count of bytes. ARGV: the attempt, free, kept or dropped, the sealed answer,
seconds to keep it, most bytes."""

_RENEW: Final = """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then return redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 0
"""


class State(enum.Enum):
    """The result of a claim."""

    CLAIMED = b"claimed"
    OTHER = b"other"
    OPEN = b"open"
    KEPT = b"kept"
    DROPPED = b"dropped"


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt's claim to an idempotent request."""

    key_id: str
    name: str
    attempt: str


class AnswerStore:
    """Stores answers in Redis. Every method raises RedisError or OSError without Redis."""

    def __init__(self, redis: Redis, secret: str) -> None:
        self._seal = Seal(secret)
        self._claim = redis.register_script(_CLAIM)
        self._settle = redis.register_script(_SETTLE)
        self._renew = redis.register_script(_RENEW)

    def name(self, key_id: str, path: str, key: str, attempt: str) -> Claim:
        """Return the claim of `attempt` to the request with Idempotency-Key `key` at `path`."""
        return Claim(key_id, self._seal.name(key_id, path, key), attempt)

    async def claim(self, claim: Claim, body: bytes) -> tuple[State, StoredAnswer | None]:
        """Claim a request. CLAIMED: this attempt must answer it. KEPT comes with the stored answer.

        Raises:
            Unreadable: the stored answer is sealed with another secret.
        """
        arguments: list[bytes | str | int] = [self._seal.fingerprint(body), claim.attempt, LEASE_SECONDS]
        found: Any = await self._claim(keys=[_PREFIX + claim.name], args=arguments)
        state = State(found[0])
        if state is not State.KEPT:
            return state, None
        return state, await self._offload(len(found[1]), self._seal.open, claim.name, found[1])

    async def keep(self, claim: Claim, answer: StoredAnswer | None) -> None:
        """End the claim with its answer; None if that was too large."""
        sealed = b""
        if answer is not None:
            sealed = await self._offload(len(answer.body), self._seal.close, claim.name, answer)
        await self._end(claim, "kept" if answer is not None else "dropped", sealed)

    async def free(self, claim: Claim) -> None:
        """End the claim without an answer: the next attempt is the first again."""
        await self._end(claim, "free", b"")

    async def renew(self, claim: Claim) -> None:
        await self._renew(keys=[_PREFIX + claim.name], args=[claim.attempt, LEASE_SECONDS])

    async def _end(self, claim: Claim, state: str, sealed: bytes) -> None:
        keys = [_PREFIX + claim.name, _PREFIX + "bytes:" + claim.key_id]
        arguments: list[bytes | str | int] = [claim.attempt, state, sealed, KEEP_SECONDS, MAX_KEPT_BYTES]
        await self._settle(keys=keys, args=arguments)

    @staticmethod
    async def _offload(size: int, work: Any, *arguments: Any) -> Any:
        """Run large work in a thread: sealing megabytes would hold up every other stream."""
        return work(*arguments) if size <= _INLINE_BYTES else await asyncio.to_thread(work, *arguments)
