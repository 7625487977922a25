"""A canary whose requests fail goes back by itself, one whose do not goes on, by usage as it was metered."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest

from contracts.adapters.reference import ADAPTER_FILES
from demo.credentials import OPERATOR
from demo.effects import ADAPTERS
from tests.waiting import eventually
from tests.walk.product import Product, TenantAccess, logged_in

pytestmark = [pytest.mark.slow, pytest.mark.walk, pytest.mark.model, pytest.mark.timeout(600)]
NAME = "canary-bot"
PLAN = {"version": 2, "steps": [50], "hold_seconds": 10, "min_requests": 10, "max_error_increase": 0.5}


@dataclass
class FaultyCopy:
    """A proxy of the real worker that answers three of four requests for one version with 500."""

    worker: str
    failing: str = ""
    passed: int = 0
    failed: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    url: str = ""

    def fails(self, body: bytes) -> bool:
        match = re.search(rb"\.a_canary-bot\.(v[0-9]+)\.", body)
        version = match[1].decode() if match else ""
        self.asked[version] = self.asked.get(version, 0) + 1
        return version == self.failing and self.asked[version] % 4 != 0


@contextmanager
def faulty_copy(worker: str) -> Iterator[FaultyCopy]:
    copy = FaultyCopy(worker)
    client = httpx.Client(base_url=worker, timeout=60, trust_env=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.pass_on(b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if copy.fails(body):
                copy.failed += 1
                self.answer(500, "application/json", b'{"error": {"message": "injected", "code": null}}')
            else:
                self.pass_on(body)

        def pass_on(self, body: bytes) -> None:
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
            reply = client.request(self.command, self.path, content=body, headers=kept)
            copy.passed += 1
            self.answer(reply.status_code, reply.headers.get("content-type", ""), reply.content)

        def answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    copy.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield copy
    finally:
        server.shutdown()
        server.server_close()
        client.close()


@contextmanager
def served_by(product: Product, copy: FaultyCopy, base_model: str) -> Iterator[None]:
    """The base model's only copy is the faulty one for a while."""
    with logged_in(product, OPERATOR, product.operator_password) as staff:
        (old,) = staff.get("/api/v1/copies", params={"base_model": base_model}).json()["results"]
        made = {"base_model": base_model, "kind": "worker"}
        new = staff.post("/api/v1/copies", json={**made, "url": copy.url})
        assert new.status_code == 201, new.text
        assert staff.delete(f"/api/v1/copies/{old['id']}").status_code == 204
        try:
            yield
        finally:
            staff.post("/api/v1/copies", json={**made, "url": old["url"]}).raise_for_status()
            staff.delete(f"/api/v1/copies/{new.json()['id']}").raise_for_status()


def register(rest: httpx.Client, base_model: str, of: str) -> int:
    files = [("files", (file, (ADAPTERS / of / file).read_bytes())) for file in ADAPTER_FILES]
    answer = rest.post("/adapters", data={"name": NAME, "base_model": base_model}, files=files)
    assert answer.status_code == 201, answer.text
    number = int(answer.json()["number"])

    def ready() -> bool:
        version = rest.get(f"/adapters/{NAME}/versions/{number}").json()
        assert version["status"] != "refused", version["reason"]
        return bool(version["status"] == "ready")

    eventually(ready, seconds=120, message=f"version {number} is ready")
    return number


def use(product: Product, tenant: TenantAccess, until: Callable[[], bool]) -> None:
    """One request after another, each of another user, until `until()`."""
    users = itertools.count(1)

    def ended(client: openai.OpenAI) -> bool:
        with contextlib.suppress(openai.InternalServerError):
            client.completions.create(
                model=f"{NAME}@prod", prompt="Ahoy", max_tokens=1, user=f"user-{next(users)}"
            )
        return until()

    with product.openai(tenant) as client:
        eventually(lambda: ended(client), seconds=120, message="the requests have their effect")


def returned_to_stable(product: Product, tenant: TenantAccess, copy: FaultyCopy) -> None:
    """Fails unless requests come to be answered by version 1 alone, 30 in a row."""
    answered: list[tuple[int, int]] = []

    def only_stable() -> bool:
        answered.append((copy.asked["v1"], copy.asked["v2"]))
        (first, canary), (last, later) = answered[-31:][0], answered[-1]
        return last - first >= 30 and later == canary

    use(product, tenant, only_stable)


def test_usage_leads_a_canary_back_or_on(product: Product) -> None:
    if not product.operator_password:
        pytest.skip("needs the operator's login, and a worker that can be reached from here")
    tenant = product.tenants[0]
    alias = f"/adapters/{NAME}/aliases/prod"
    with product.rest_client(tenant) as rest, faulty_copy(product.worker) as copy:
        assert [register(rest, tenant.base_model, of) for of in ("pirate", "strict-json")] == [1, 2]
        assert rest.put(alias, json={"version": 1}).is_success

        def start() -> str:
            begun = rest.post(f"{alias}/rollouts", json={**PLAN, "max_latency_ratio": None})
            assert begun.status_code == 201, begun.text
            return f"{alias}/rollouts/{begun.json()['id']}"

        def means() -> tuple[int, list[Any]]:
            shown = rest.get(alias).json()
            return shown["version"], shown["arms"]

        with served_by(product, copy, tenant.base_model):
            copy.failing = "v2"
            url = start()
            assert means() == (1, [{"version": 1, "percent": 50}, {"version": 2, "percent": 50}])
            use(product, tenant, lambda: rest.get(url).json()["status"] != "running")
            ended = rest.get(url).json()
            assert ended["status"] == "rolled_back", ended
            assert means() == (1, [])
            decision = ended["decisions"][-1]
            canary, stable = decision["figures"]["canary"], decision["figures"]["stable"]
            assert (decision["decision"], decision["percent"]) == ("roll_back", 0)
            # The decision's figures are the gateway's metering of the real failures.
            assert 5 <= canary["errors"] <= copy.failed
            assert canary["requests"] <= copy.asked["v2"]
            assert stable["requests"] - stable["errors"] <= copy.asked["v1"]
            assert "of the canary's requests failed" in ended["reason"]
            returned_to_stable(product, tenant, copy)

            copy.failing = ""
            url = start()
            use(product, tenant, lambda: rest.get(url).json()["status"] != "running")
            assert rest.get(url).json()["status"] == "promoted"
            assert means() == (2, [])
        history = rest.get(f"{alias}/history").json()["results"]
        assert [change["after"]["version"] for change in history] == [2, 1, 1, 1, 1]
        assert rest.delete(f"/adapters/{NAME}").status_code == 204
