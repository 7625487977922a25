"""Whether the process of this container does its work: exit status 0 or 1, and a sentence.

    health.py http URL            GET gives a 2xx
    health.py routes              Redis answers and holds a snapshot once there are routes
    health.py ingest              the usage consumer has asked Redis for work in the last minute
    health.py worker              this container's Celery worker has told its broker that it lives
    health.py beat                this container's Celery beat answers a ping

Light on purpose, since it runs every few seconds: none of these loads Django, and each imports what it needs
by itself (0.04 s of CPU time for a bare Python, 0.35 with Redis' client, 0.55 with Celery).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redis import Redis

_TIMEOUT_S: Final = 3.0
_SILENT_S: Final = 30.0
_INGEST_IDLE_MS: Final = 60_000


def http(url: str) -> str | None:
    """What is wrong with `url`, or None."""
    import urllib.request

    # Behind TLS the web server sends plain requests to https://; this one stands in for the proxy's.
    request = urllib.request.Request(url, headers={"X-Forwarded-Proto": "https"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
        return None if response.status < 300 else f"{url} said {response.status}"


def routes() -> str | None:
    """What is wrong with the published route table, or None."""
    from contracts.redis_names import ROUTES_SNAPSHOT, ROUTES_VERSION

    with _redis() as client:
        # A new installation has nothing to publish: neither key is there, and that is sound.
        lost = client.exists(ROUTES_VERSION) and not client.exists(ROUTES_SNAPSHOT)
    return "Redis has route changes and no snapshot" if lost else None


def ingest() -> str | None:
    """What is wrong with the usage consumers, or None."""
    from contracts.redis_names import USAGE_GROUP, USAGE_STREAM

    with _redis() as client:
        idle = [consumer["idle"] for consumer in client.xinfo_consumers(USAGE_STREAM, USAGE_GROUP)]
    return None if idle and min(idle) < _INGEST_IDLE_MS else "no usage consumer asked for work in a minute"


def worker() -> str | None:
    """What is wrong with this container's Celery worker, or None."""
    age = time.time() - os.stat(os.environ["GRAFTWORK_HEARTBEAT_FILE"]).st_mtime
    return f"the worker was last heard {age:.0f} s ago" if age > _SILENT_S else None


def beat() -> str | None:
    """What is wrong with this container's beat, or None: one whose scheduler has stalled does not answer."""
    import socket

    from celery import Celery

    name = f"celerybeat@{socket.gethostname()}"
    app = Celery(broker=os.environ["GRAFTWORK_REDIS_URL"])
    return None if app.control.ping(destination=[name], timeout=_TIMEOUT_S) else f"{name} does not answer"


_CHECKS: Final[dict[str, Callable[..., str | None]]] = {
    check.__name__: check for check in (http, routes, ingest, worker, beat)
}


def _redis() -> Redis:
    from redis import Redis

    return Redis.from_url(os.environ["GRAFTWORK_REDIS_URL"], socket_timeout=_TIMEOUT_S, decode_responses=True)


def main(name: str, *arguments: str) -> int:
    """Runs one check; anything that it raises is the reason."""
    try:
        wrong = _CHECKS[name](*arguments)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        print(wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
