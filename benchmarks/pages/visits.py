"""Requests every page of the web UI, in rounds: `python -m benchmarks.pages.visits <asked.json> --rounds N`.

Prints the time of each in the web process's application, including the compression of the answer and the
cleanup after it. The pages are found by their URL patterns: those that answer a GET with a whole page. Parts
that pages load later, and queries of a page, count as separate pages. `--pages usage home` selects name
prefixes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from controlplane.asgi import application  # first of all: it sets Django up, and freezes what is loaded

# isort: split
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, reverse

from controlplane.console.urls import urlpatterns

Names = Mapping[str, str]
ROOT: Final = Path(__file__).resolve().parents[2]
_PARTS: Final = re.compile(r"""hx-get="{% url 'console:([\w-]+)'""")
ASKED: Final = {
    "home": ("?days=1", "?days=30"),
    "home-figures": ("?days=30",),
    "adapters": ("?search=bot-00", "?status=ready", "?status=refused", "?sort=-created"),
    "adapter-shares": ("?" + "&".join(f"name=bot-{number:06}" for number in range(50)),),
    "keys": ("?search=key",),
    "usage": ("?days=90", "?measure=price", "?group=version", "?group=key", "?bucket=hour&days=7"),
    "requests": ("?status=error", "?days=1"),
    "hosting": ("?days=90",),
    "audit": ("?action=tenant",),
    "staff-tenants": ("?search=other",),
    "staff-residency": ("?all=1",),
    "staff-hosting": ("?days=90",),
}
"""A page's name -> additional query strings, where they may change the cost."""


def addresses(names: Names) -> dict[str, str]:
    """Return every address of the web UI below a tenant's or the staff's, by name.

    Args:
        names: values of address parameters, or of `<page's name>.<parameter>`; 1 for others.
    """
    made: dict[str, str] = {}
    for name, pattern in _patterns(urlpatterns, ""):
        if pattern.startswith(("t/", "staff/")):
            parameters = re.findall(r"<(?:\w+:)?(\w+)>", pattern)
            values = {key: names.get(f"{name}.{key}", names.get(key, "1")) for key in parameters}
            made[name] = reverse(f"console:{name}", kwargs=values)
    return made


def parts() -> set[str]:
    """Return the names of parts that pages load or reload, found in their templates."""
    templates = (path.read_text() for path in (ROOT / "templates").rglob("*.html"))
    return {name for text in templates for name in _PARTS.findall(text)}


def asked_of(paths: Mapping[str, str]) -> dict[str, str]:
    """Return each page without a query and with those of `ASKED`, by name and query."""
    return {
        f"{name}{query}": f"{path}{query}"
        for name, path in paths.items()
        for query in ("", *ASKED.get(name, ()))
    }


def _patterns(patterns: list[Any], prefix: str) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _patterns(pattern.url_patterns, prefix + str(pattern.pattern))
        elif isinstance(pattern, URLPattern):
            yield str(pattern.name), prefix + str(pattern.pattern)


def group_of(path: str) -> str:
    """Return the group of an address, such as `a tenant's adapters` for /t/scale/adapters/bot-1/."""
    _, first, *rest = path.partition("?")[0].split("/")
    thing = rest[1 if first == "t" else 0] or "home"
    return f"{'a tenant' if first == 't' else 'staff'}'s {thing}"


def client_with(session: str) -> Client:
    """Return a client with that session, which accepts compressed pages."""
    client = Client(headers={"Accept-Encoding": "gzip"}, SERVER_NAME="127.0.0.1")
    client.cookies[settings.SESSION_COOKIE_NAME] = session
    return client


def pages_of(
    clients: Mapping[str, Client], paths: Mapping[str, str]
) -> tuple[dict[str, tuple[Client, str]], list[str]]:
    """Select whole pages and parts from `paths`; return them and the names of unopened ones."""
    found: dict[str, tuple[Client, str]] = {}
    refused: list[str] = []
    known = parts()
    for name, path in paths.items():
        client = clients["staff" if path.startswith("/staff/") else "tenant"]
        answer = client.get(path, headers={"Accept-Encoding": ""})
        is_part = name.partition("?")[0] in known
        if answer.status_code == 200 and not answer.streaming and (is_part or b"<html" in answer.content):
            found[name] = client, path
        elif answer.status_code >= 400 and answer.status_code != 405:  # 405: an action that is only posted
            refused.append(f"{name} ({answer.status_code})")
    return found, refused


async def ask(path: str, session: str) -> int:
    """Request one page like a browser; return its status."""
    address, _, query = path.partition("?")
    headers = {
        "host": "127.0.0.1",
        "accept": "text/html",
        "accept-encoding": "gzip",
        "cookie": f"{settings.SESSION_COOKIE_NAME}={session}",
    }
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": address,
        "raw_path": address.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[Mapping[str, Any]] = []
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:  # the browser stays connected until it is answered
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return int(sent[0]["status"])


async def visit(
    pages: Mapping[str, tuple[str, str]], rounds: int, taken: Mapping[str, dict[str, Any]]
) -> None:
    """Request each page once per round; append milliseconds of wall and process CPU time to `taken`.

    Args:
        pages: address and session by name.
    """
    for _ in range(rounds):
        for name, (path, session) in pages.items():
            wall, cpu = time.perf_counter(), time.process_time()
            status = await ask(path, session)
            taken[name]["wall"].append((time.perf_counter() - wall) * 1000)
            taken[name]["cpu"].append((time.process_time() - cpu) * 1000)
            if status != 200:
                raise RuntimeError(f"{path} answers {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("asked", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pages", nargs="*", default=[""])
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    asked = json.loads(arguments.asked.read_text())
    clients = {whose: client_with(session) for whose, session in asked["sessions"].items()}
    paths = asked_of(addresses(asked["names"])).items()
    wanted = {name: path for name, path in paths if name.startswith(tuple(arguments.pages))}
    pages, refused = pages_of(clients, wanted)
    taken: dict[str, dict[str, Any]] = defaultdict(lambda: {"wall": [], "cpu": [], "queries": 0})
    for name, (client, path) in pages.items():
        with CaptureQueriesContext(connection) as queries:
            client.get(path)
        taken[name]["queries"] = len(queries)
    sessions = {
        name: (path, client.cookies[settings.SESSION_COOKIE_NAME].value)
        for name, (client, path) in pages.items()
    }
    asyncio.run(visit(sessions, arguments.rounds, taken))
    groups = {name: group_of(path) for name, (_, path) in pages.items()}
    print(json.dumps({"pages": taken, "groups": groups, "left_out": refused}))


if __name__ == "__main__":
    main()
