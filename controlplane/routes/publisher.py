"""Moves route changes from the outbox to Redis; the version in Redis is the cursor.

Any number of processes may publish at once: the script publishes change n only onto version n - 1, so of
two publishers one delivers a change and the other finds it delivered.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Final, Protocol, Self, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.routes.selectors import route_changes_after, route_table, route_version
from gateway.wire import ROUTES_DELTAS, ROUTES_SNAPSHOT, ROUTES_VERSION, RouteChange

_SNAPSHOT_VERSION: Final = ROUTES_SNAPSHOT + ":version"
"""Redis string, ours alone: version of the snapshot, so that an older one never replaces a newer."""
_STREAM_LENGTH: Final = 10_000
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
redis.call('SET', KEYS[3], ARGV[2])
redis.call('SET', KEYS[4], ARGV[1])
if ARGV[5] == '1' and version > tonumber(redis.call('GET', KEYS[1]) or '-1') then
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'version', ARGV[1], 'change', ARGV[3])
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
            if ours is None or current == ours:
                return published
            if current is None or current > ours:
                renumber(above=-1 if current is None else current)
                return published + self.publish_snapshot(announce=True)
            changes = route_changes_after(version=current)
            if not changes or changes[0].version != current + 1:
                renumber(above=current)
                return published + self.publish_snapshot(announce=True)
            published += self._publish_changes(changes)

    def publish_snapshot(self, *, announce: bool = False) -> int:
        """Writes the whole table as of now; an older one in Redis is replaced, a newer one stays.

        `announce` makes its version Redis's version and tells waiting readers: only right after a
        renumbering, whose version follows none that a reader can hold.
        """
        table = route_table()
        announcement = RouteChange(table.version, "keys/", None)
        arguments: list[str | int] = [table.version, json.dumps(table.to_dict()), announcement.to_json()]
        arguments += [_STREAM_LENGTH, int(announce)]
        return cast(int, self._redis.eval(_PUBLISH_SNAPSHOT, 4, *_KEYS, *arguments))

    def snapshot_is_stale(self, *, lag: int = _STALE_SNAPSHOT) -> bool:
        """Whether `lag` or more changes were published since the snapshot was written."""
        snapshot, current = self._number(_SNAPSHOT_VERSION), self._version()
        lost = self._redis.exists(ROUTES_SNAPSHOT) == 0
        return current is not None and (lost or snapshot is None or current - snapshot >= lag)

    def _publish_changes(self, changes: list[RouteChange]) -> int:
        for published, change in enumerate(changes):
            arguments: list[str | int] = [change.version, change.to_json(), _STREAM_LENGTH]
            reached = cast(int, self._redis.eval(_PUBLISH_CHANGE, 2, *_KEYS[:2], *arguments))
            if reached != change.version:
                return published  # another publisher was faster, or Redis was emptied: look again
        return len(changes)

    def _version(self) -> int | None:
        return self._number(ROUTES_VERSION)

    def _number(self, key: str) -> int | None:
        value = cast(bytes | None, self._redis.get(key))
        return None if value is None else int(value)
