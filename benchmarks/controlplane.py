"""The control plane with 100,000 adapters and 10,000 keys of one tenant, on PostgreSQL.

A web process under the row policies, a publisher and a gateway run as processes. A client measures pages of
lists, and the time from sending a change until the gateway applies it. This is also measured while snapshots
are written, and after Redis has lost its data. GRAFTWORK_TEST_POSTGRES_URL names the server; a database is
created there and dropped.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx
import psycopg
import redis

from benchmarks.figure import Figure
from benchmarks.processes import (
    POSTGRES,
    ROOT,
    free_port,
    new_database,
    product_environ,
    run_python,
    start,
    start_valkey,
    wait_until,
)

ADAPTERS: Final = 100_000
KEYS: Final = 10_000
PAGES: Final = 100
"""Requests of each list."""
CHANGES: Final = 50
_ROLE: Final = f"graftwork_bench_{os.getpid()}"
_unmoved = itertools.count()
"""Numbers of adapters whose alias is still at version 1."""
_SNAPSHOT: Final = """
import django, time; django.setup()
from django.conf import settings
from controlplane.routes.publisher import RoutePublisher
until = time.monotonic() + {seconds}
with RoutePublisher(settings.GRAFTWORK.redis_url) as publisher:
    while True:
        begun = time.perf_counter()
        publisher.publish_snapshot(paced=True)
        print(time.perf_counter() - begun, flush=True)
        if time.monotonic() > until:
            break
"""


@dataclass(frozen=True)
class Product:
    """The running system: a client of the web process with the tenant's key, and the gateway's address."""

    api: httpx.Client
    gateway: str
    redis_url: str
    environ: dict[str, str]

    def version(self) -> int:
        """Return the version of the gateway's current routes."""
        return int(httpx.get(f"{self.gateway}/readyz", trust_env=False).json()["routes_version"] or 0)


def run() -> Iterator[Figure]:
    """Start the system, measure, and yield the figures."""
    with ExitStack() as stack:
        begun = time.perf_counter()
        product = stack.enter_context(running(adapters=ADAPTERS, keys=KEYS))
        seconds, note = time.perf_counter() - begun, "with everything else that starts"
        yield _figure("time until a gateway that starts has the table", seconds, "s", note=note)
        yield from _lists(product)
        yield from _changes(product, "a change in force")
        yield from _while_snapshots(product)
        yield from _redis_lost(product)


@contextmanager
def running(*, adapters: int, keys: int) -> Iterator[Product]:
    """Run the processes on a database of the given size."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        valkey, web, gateway = start_valkey(stack, folder), free_port(), free_port()
        environ = isolated_environ(stack.enter_context(database()), folder, web, gateway, valkey)
        run_python(environ, "manage.py", "migrate", "-v0")
        counts = ("--adapters", str(adapters), "--keys", str(keys))
        key = run_python(environ, "-m", "benchmarks.controlplane_data", *counts).strip()
        log = stack.enter_context((folder / "log").open("wb"))
        server = [sys.executable, "-m", "controlplane.web_server", "--port", str(web)]
        start(stack, server, environ | {"GRAFTWORK_DATABASE_URL": web_role(environ)}, output=log)
        start(stack, [sys.executable, "manage.py", "publish_routes"], environ, output=log)
        start(stack, [sys.executable, "-m", "gateway"], environ, output=log)
        headers = {"Authorization": f"Bearer {key}"}
        base = f"http://127.0.0.1:{web}/api/v1"
        api = stack.enter_context(httpx.Client(base_url=base, headers=headers, timeout=60, trust_env=False))
        product = Product(api, f"http://127.0.0.1:{gateway}", environ["GRAFTWORK_REDIS_URL"], environ)
        wait_until(lambda: api.get("/me").status_code == 200, name="the web process", seconds=60)
        wait_until(lambda: product.version() > 0, name="the gateway's routes", seconds=120)
        yield product


def _lists(product: Product) -> Iterator[Figure]:
    chosen = random.Random(1)
    names = [f"bot-{chosen.randrange(ADAPTERS):06}" for _ in range(PAGES)]
    deep = [_cursor(name) for name in names]
    lists: dict[str, list[str]] = {
        "adapters, first page": ["/adapters"] * PAGES,
        "adapters, any page": deep,
        "adapters by part of a name": [f"/adapters?search={name[4:]}" for name in names],
        "adapters by status": ["/adapters?status=ready"] * PAGES,
        "an adapter's versions": [f"/adapters/{name}/versions" for name in names],
        "an adapter's aliases": [f"/adapters/{name}/aliases" for name in names],
        "keys, first page": ["/keys"] * PAGES,
        "keys by part of a name": [f"/keys?search={number}" for number in range(PAGES)],
    }
    for what, paths in lists.items():
        seconds = []
        for path in paths:
            begun = time.perf_counter()
            product.api.get(path).raise_for_status()
            seconds.append(time.perf_counter() - begun)
        p95 = statistics.quantiles(seconds, n=20)[-1] * 1000
        note = f"median {statistics.median(seconds) * 1000:.1f} ms, 50 rows a page"
        yield _figure(f"p95 of {what}", p95, "ms", goal=100.0, note=note)


def _changes(product: Product, what: str) -> Iterator[Figure]:
    seconds = [_change(product) for _ in range(CHANGES)]
    note = f"median {statistics.median(seconds) * 1000:.1f} ms, from sending the request"
    yield _figure(f"{what}, longest of {CHANGES}", max(seconds) * 1000, "ms", goal=1000.0, note=note)


def _change(product: Product) -> float:
    """Return the seconds from moving an alias until the gateway applies it."""
    before = product.version()
    begun = time.perf_counter()
    path = f"/adapters/bot-{next(_unmoved):06}/aliases/prod"
    product.api.put(path, json={"version": 2}).raise_for_status()
    wait_until(lambda: product.version() > before, name="the change", seconds=60, pause=0.002)
    return time.perf_counter() - begun


def _while_snapshots(product: Product) -> Iterator[Figure]:
    code = _SNAPSHOT.format(seconds=10)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=product.environ, stdout=subprocess.PIPE, text=True
    )
    time.sleep(2)
    yield from _changes(product, "a change in force while snapshots are written")
    written = [float(line) for line in process.communicate()[0].splitlines()]
    yield _figure(
        "writing the snapshot, median", statistics.median(written), "s", note=f"{len(written)} times"
    )


def _redis_lost(product: Product) -> Iterator[Figure]:
    before = product.version()
    with redis.Redis.from_url(product.redis_url) as client:
        client.flushall()
    begun = time.perf_counter()
    wait_until(lambda: product.version() > before, name="the routes", seconds=120, pause=0.01)
    note = "until a gateway has the new snapshot; it serves on meanwhile"
    yield _figure("routes rebuilt after Redis lost everything", time.perf_counter() - begun, "s", note=note)
    yield from _changes(product, "a change in force after that")


def _figure(metric: str, value: float, unit: str, *, goal: float | None = None, note: str = "") -> Figure:
    met = None if goal is None else value < goal
    return Figure("controlplane", metric, round(value, 2), unit, goal=goal, met=met, note=note)


def _cursor(name: str) -> str:
    """Return the address of the list's page after `name`."""
    return "/adapters?" + urlencode({"cursor": b64encode(f"p={name}".encode()).decode()})


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of an empty database; drop it and the web process's role afterwards."""
    try:
        with new_database(POSTGRES) as url:
            yield url
    finally:
        with psycopg.connect(POSTGRES, autocommit=True) as connection:
            connection.execute(f"DROP ROLE IF EXISTS {_ROLE}")


def web_role(environ: dict[str, str]) -> str:
    """Return the web process's database URL, whose role owns no table, so that row policies apply."""
    url = urlsplit(environ["GRAFTWORK_DATABASE_URL"])
    web = urlunsplit(url._replace(netloc=f"{_ROLE}:bench@{url.netloc.rpartition('@')[2]}"))
    run_python(environ | {"WEB_DATABASE_URL": web}, "manage.py", "web_role")
    return web


def isolated_environ(database: str, folder: Path, web: int, gateway: int, valkey: int) -> dict[str, str]:
    """Return a whole environment for the product's processes, without the caller's own settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")}
    return inherited | product_environ(database, folder, web=web, gateway=gateway, valkey=valkey)
