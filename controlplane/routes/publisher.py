"""Publishes route changes from the outbox to Redis; the version in Redis is the cursor.

Any number of processes may publish at once: the script applies change n only to version n - 1, so each change
is published once.
"""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Final, Protocol, Self, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from contracts.redis_names import ROUTES_DELTAS, ROUTES_SEEN, ROUTES_SNAPSHOT, ROUTES_VERSION
from contracts.route_table import RouteChange
from controlplane.routes.selectors import route_changes_after, route_snapshot, route_version

_SNAPSHOT_VERSION: Final = ROUTES_SNAPSHOT + ":version"
"""Redis string, used here only: version of the snapshot, so that an older one never replaces a newer."""
_STREAM_LENGTH: Final = 10_000
_WRITTEN_S: Final = 60
"""Expiry of a temporary snapshot whose writer died, in seconds."""
_PIECE: Final = 1 << 20
"""Bytes of a snapshot per command."""
_STALE_SNAPSHOT: Final = 1_000
"""Changes after which the snapshot is rewritten, well before the stream drops those that follow it."""

_PUBLISH_CHANGE: Final = """
local current = tonumber(redis.call('GET', KEYS[1]) or '-1')
if current ~= tonumber(ARGV[1]) - 1 then return current end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'version', ARGV[1], 'change', ARGV[2])
redis.call('SET', KEYS[1], ARGV[1])
return tonumber(ARGV[1])
"""
# After a renumbering the snapshot is also announced in the stream. Its version leaves a gap, so that waiting
# readers fetch the snapshot.
_PUBLISH_SNAPSHOT: Final = """
local version = tonumber(ARGV[1])
if version < tonumber(redis.call('GET', KEYS[4]) or '-1') then return 0 end
if redis.call('STRLEN', KEYS[5]) ~= tonumber(ARGV[5]) then return 0 end
redis.call('UNLINK', KEYS[3])
redis.call('RENAME', KEYS[5], KEYS[3])
redis.call('PERSIST', KEYS[3])
redis.call('SET', KEYS[4], ARGV[1])
if ARGV[4] == '1' and version > tonumber(redis.call('GET', KEYS[1]) or '-1') then
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'version', ARGV[1], 'change', ARGV[2])
end
return 1
"""
_KEYS: Final = [ROUTES_VERSION, ROUTES_DELTAS, ROUTES_SNAPSHOT, _SNAPSHOT_VERSION]


class Renumber(Protocol):
    """Raises the database's version above `above` (services.route_renumber)."""

    def __call__(self, *, above: int) -> None: ...


class RoutePublisher:
    """A connection to Redis that publishes the outbox's changes after Redis's version."""

    def __init__(self, redis_url: str) -> None:
        # Short timeouts without the client's retries, which sleep for seconds: this also runs after a commit
        # inside a web request, and `publish_routes` tries again.
        self._redis = redis.Redis.from_url(
            redis_url, socket_connect_timeout=1.0, socket_timeout=5.0, retry=Retry(NoBackoff(), 0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.close()

    def publish(self, *, renumber: Renumber) -> int:
        """Bring Redis to the database's version; return the number of messages sent.

        Raises:
            redis.RedisError: Redis is unavailable; nothing is lost, call again.
        """
        published = 0
        while True:
            # Read Redis first: it holds committed changes only, so the database can be behind it only if
            # it was replaced.
            current, ours = self._version(), route_version()
            if ours is None:
                return published
            # A gateway may have a newer version than both, if Redis and the database were restored.
            highest = max(-1 if current is None else current, self._highest_reported())
            if current is None or highest > ours:
                renumber(above=highest)
                return published + self.publish_snapshot(announce=True)
            if current == ours:
                return published
            changes = route_changes_after(version=current)
            if not changes or changes[0].version != current + 1:
                renumber(above=current)
                return published + self.publish_snapshot(announce=True)
            published += self._publish_changes(changes)

    def publish_snapshot(self, *, announce: bool = False, paced: bool = False) -> int:
        """Write the whole current table to Redis, unless Redis has a newer snapshot.

        `announce` also sets Redis's version and notifies waiting readers. Use it only right after a
        renumbering, which leaves a gap in the versions. `paced`: see `route_snapshot`; for background writes.
        """
        version, text = route_snapshot(paced=paced)
        announcement, content = RouteChange(version, "keys/", None).to_json(), text.encode()
        arguments: list[str | int] = [version, announcement, _STREAM_LENGTH, int(announce), len(content)]
        # Sent in pieces and then renamed: one command with tens of megabytes would block Redis (350 ms for
        # 40 MB with its append-only file, 40 ms by the megabyte).
        written = f"{ROUTES_SNAPSHOT}:{uuid.uuid4().hex}"
        self._redis.set(written, b"", ex=_WRITTEN_S)
        try:
            for start in range(0, len(content), _PIECE):
                self._redis.append(written, content[start : start + _PIECE])
            return cast(int, self._redis.eval(_PUBLISH_SNAPSHOT, 5, *_KEYS, written, *arguments))
        finally:
            self._redis.unlink(written)

    def snapshot_is_stale(self, *, lag: int = _STALE_SNAPSHOT) -> bool:
        """Return True if `lag` or more changes were published since the snapshot, or it is missing."""
        snapshot, current = self._number(_SNAPSHOT_VERSION), self._version()
        if current is None or current == snapshot:
            return current is not None and self._redis.exists(ROUTES_SNAPSHOT) == 0
        lost = self._redis.exists(ROUTES_SNAPSHOT, ROUTES_DELTAS) < 2
        return lost or snapshot is None or current - snapshot >= lag

    def _publish_changes(self, changes: list[RouteChange]) -> int:
        for published, change in enumerate(changes):
            arguments: list[str | int] = [change.version, change.to_json(), _STREAM_LENGTH]
            reached = cast(int, self._redis.eval(_PUBLISH_CHANGE, 2, *_KEYS[:2], *arguments))
            if reached != change.version:
                return published  # another publisher was faster, or Redis was emptied: check again
        return len(changes)

    def _version(self) -> int | None:
        return self._number(ROUTES_VERSION)

    def _highest_reported(self) -> int:
        """Return the highest route version that a gateway reported when Redis offered an older one, or -1."""
        score = self._redis.zscore(ROUTES_SEEN, "version")
        return -1 if score is None else int(score)

    def _number(self, key: str) -> int | None:
        value = cast(bytes | None, self._redis.get(key))
        return None if value is None else int(value)
