"""Moves route changes from the outbox to Redis; the version in Redis is the cursor.

Any number of processes may publish at once: the script publishes change n only onto version n - 1, so of
two publishers one delivers a change and the other finds it delivered.
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
"""Redis string, ours alone: version of the snapshot, so that an older one never replaces a newer."""
_STREAM_LENGTH: Final = 10_000
_WRITTEN_S: Final = 60
"""Seconds after which a snapshot goes whose writer died before it was in its place."""
_PIECE: Final = 1 << 20
"""Bytes of a snapshot that are sent at a time."""
_STALE_SNAPSHOT: Final = 1_000
"""Rewrite the snapshot after so many changes: well before the stream forgets those that follow it."""

_PUBLISH_CHANGE: Final = """
local current = tonumber(redis.call('GET', KEYS[1]) or '-1')
if current ~= tonumber(ARGV[1]) - 1 then return current end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'version', ARGV[1], 'change', ARGV[2])
redis.call('SET', KEYS[1], ARGV[1])
return tonumber(ARGV[1])
"""
# After a renumbering the snapshot is announced in the stream too, under a version that follows none: a
# reader that waits there sees the gap and fetches it.
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
    """Lifts the database's version above `above` (services.route_renumber)."""

    def __call__(self, *, above: int) -> None: ...


class RoutePublisher:
    """A connection to Redis that publishes what the outbox holds beyond Redis's version."""

    def __init__(self, redis_url: str) -> None:
        # Short and without the client's own retries, which sleep for seconds: this runs after a commit
        # inside a web request too, and `publish_routes` tries again.
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
        """Brings Redis to the database's version; returns how many messages it took.

        Raises:
            redis.RedisError: Redis is away; nothing is lost, call again.
        """
        published = 0
        while True:
            # Redis is read first: what it holds has committed, so only a database that was replaced
            # can be behind it.
            current, ours = self._version(), route_version()
            if ours is None:
                return published
            # A gateway may have seen more than Redis and the database now hold: both were restored.
            highest = max(-1 if current is None else current, self._seen())
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
        """Writes the whole table as of now; an older one in Redis is replaced, a newer one stays.

        `announce` makes its version Redis's version and tells waiting readers: only right after a
        renumbering, whose version follows none that a reader can hold. `paced`: see `route_snapshot`; for
        one that nobody waits for.
        """
        version, text = route_snapshot(paced=paced)
        announcement, content = RouteChange(version, "keys/", None).to_json(), text.encode()
        arguments: list[str | int] = [version, announcement, _STREAM_LENGTH, int(announce), len(content)]
        # Sent by pieces and then renamed: Redis does nothing else while it takes tens of megabytes in one
        # command (350 ms for 40 MB with its append-only file, 40 ms by the megabyte).
        written = f"{ROUTES_SNAPSHOT}:{uuid.uuid4().hex}"
        self._redis.set(written, b"", ex=_WRITTEN_S)
        try:
            for start in range(0, len(content), _PIECE):
                self._redis.append(written, content[start : start + _PIECE])
            return cast(int, self._redis.eval(_PUBLISH_SNAPSHOT, 5, *_KEYS, written, *arguments))
        finally:
            self._redis.unlink(written)

    def snapshot_is_stale(self, *, lag: int = _STALE_SNAPSHOT) -> bool:
        """Whether `lag` or more changes were published since the snapshot was written."""
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
                return published  # another publisher was faster, or Redis was emptied: look again
        return len(changes)

    def _version(self) -> int | None:
        return self._number(ROUTES_VERSION)

    def _seen(self) -> int:
        """The highest version of a gateway that was offered a lower one; -1 when there is none."""
        score = self._redis.zscore(ROUTES_SEEN, "version")
        return -1 if score is None else int(score)

    def _number(self, key: str) -> int | None:
        value = cast(bytes | None, self._redis.get(key))
        return None if value is None else int(value)
