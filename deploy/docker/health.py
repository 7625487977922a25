"""Whether the process of this container does its work: exit status 0 or 1, and a sentence.

    health.py http URL            GET gives a 2xx
    health.py routes              Redis answers and holds a snapshot once there are routes
    health.py ingest              the usage consumer has asked Redis for work in the last minute
    health.py celery              this container's Celery worker answers a ping
    health.py fresh FILE SECONDS  FILE, with any suffix, was written in the last SECONDS

Light on purpose, since it runs every few seconds: none of these loads Django.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from redis import Redis

_TIMEOUT_S: Final = 3.0
_INGEST_IDLE_MS: Final = 60_000


def http(url: str) -> str | None:
    """What is wrong with `url`, or None."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310
        return None if response.status < 300 else f"{url} said {response.status}"


def routes() -> str | None:
    """What is wrong with the published route table, or None."""
    from gateway.wire import ROUTES_SNAPSHOT, ROUTES_VERSION

    with _redis() as client:
        # A new installation has nothing to publish: neither key is there, and that is sound.
        lost = client.exists(ROUTES_VERSION) and not client.exists(ROUTES_SNAPSHOT)
    return "Redis has route changes and no snapshot" if lost else None


def ingest() -> str | None:
    """What is wrong with the usage consumers, or None."""
    from gateway.wire import USAGE_GROUP, USAGE_STREAM

    with _redis() as client:
        idle = [consumer["idle"] for consumer in client.xinfo_consumers(USAGE_STREAM, USAGE_GROUP)]
    return None if idle and min(idle) < _INGEST_IDLE_MS else "no usage consumer asked for work in a minute"


def celery() -> str | None:
    """What is wrong with this container's Celery worker, or None."""
    from celery import Celery

    name = f"celery@{socket.gethostname()}"
    app = Celery(broker=os.environ["GRAFTWORK_REDIS_URL"])
    return None if app.control.ping(destination=[name], timeout=_TIMEOUT_S) else f"{name} does not answer"


def fresh(file: str, seconds: str) -> str | None:
    """What is wrong with `file`'s age, or None."""
    # A dbm file's name: which suffixes it gets depends on how Python was built.
    found = [each.stat().st_mtime for each in Path(file).parent.glob(f"{Path(file).name}*")]
    if not found:
        return f"there is no {file}"
    age = time.time() - max(found)
    return None if age < float(seconds) else f"{file} was last written {age:.0f} s ago"


_CHECKS: Final[dict[str, Callable[..., str | None]]] = {
    check.__name__: check for check in (http, routes, ingest, celery, fresh)
}


def _redis() -> Redis:
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
