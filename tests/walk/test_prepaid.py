"""Prepaid in one walk: topped up, used until the money ends, warned, stopped, topped up again, and billed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from demo.credentials import OPERATOR
from tests.waiting import eventually
from tests.walk.product import Product, logged_in

pytestmark = [pytest.mark.slow, pytest.mark.walk, pytest.mark.model, pytest.mark.timeout(600)]

INPUT, CACHED_INPUT, OUTPUT = 100, 25, 400
"""Nano-units a token, as the demo seeds them."""
DEPOSIT = 400_000
WORST_CALL = 20_000
"""Nano-units that a gateway may reserve for one of the calls below."""


COUNTED_TWICE_S = 45.0
"""Usage that is ingested and within `LAG_MS` counts twice, so that no gateway's report is missed."""


@dataclass
class Caller:
    """A tenant's application, and the usage that its answers reported."""

    client: OpenAI
    model: str
    spent: int = 0
    calls: int = 0

    def call(self) -> None:
        """Raises RateLimitError."""
        question: Any = [{"role": "user", "content": f"Name a plant, number {self.calls}."}]
        answer = self.client.chat.completions.create(model=self.model, messages=question, max_tokens=16)
        usage = answer.usage
        assert usage is not None
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        self.spent += (usage.prompt_tokens - cached) * INPUT + cached * CACHED_INPUT
        self.spent += usage.completion_tokens * OUTPUT
        self.calls += 1

    def stopped(self) -> bool:
        """Return True if the next call is refused because the balance is used up."""
        try:
            self.call()
        except openai.RateLimitError as error:
            if error.code != "insufficient_quota":
                raise
            return True
        return False

    def ended(self) -> bool:
        """Return True if calls stay refused: usage of the last half minute counts twice until then."""
        deadline = time.monotonic() + COUNTED_TWICE_S
        while self.stopped():
            if time.monotonic() > deadline:
                return True
            time.sleep(1)  # Each attempt that is served spends money: one a second is often enough.
        return False


@dataclass
class Hooks:
    """Webhook events received."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def percents(self) -> list[int]:
        return [event["data"]["percent"] for event in self.events if event["type"] == "prepaid.threshold"]


@contextmanager
def hooks_on(port: int) -> Iterator[Hooks]:
    seen = Hooks()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()


def done(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


def test_money_ends_is_topped_up_and_billed_to_the_nano_unit(product: Product) -> None:
    if not product.operator_password or not product.hooks_port:
        pytest.skip("needs the operator's login, and a port that webhooks may call")
    tenant, password = f"prepaid-{time.time_ns()}", "walk-a-long-way-7"
    model = product.tenants[0].base_model
    with (
        logged_in(product, OPERATOR, product.operator_password) as staff,
        hooks_on(product.hooks_port) as hooks,
    ):
        api = f"/api/v1/tenants/{tenant}"
        done(staff.post("/api/v1/tenants", json={"id": tenant, "name": "Prepaid"}))
        owner = {"email": f"{tenant}@walk.test", "password": password, "tenant": tenant}
        done(staff.post("/api/v1/users", json=owner))
        done(staff.post(f"{api}/payments", json={"amount_nano": DEPOSIT}))
        stop = staff.put(f"{api}/limits", json={"prepaid_stop": True}, headers={"If-Match": "*"})
        done(stop)
        with logged_in(product, owner["email"], password) as member:
            hook = {"url": f"http://127.0.0.1:{product.hooks_port}/", "events": ["prepaid.threshold"]}
            done(member.post("/api/v1/webhooks", json=hook))
            key = done(member.post("/api/v1/keys", json={"name": "app", "scopes": ["inference"]}))["key"]
            with OpenAI(base_url=product.gateway, api_key=key, max_retries=0) as client:
                caller = Caller(client, model)
                eventually(lambda: _known(caller), message="the gateway knows the key")
                _until_it_ends(caller, hooks)
                done(staff.post(f"{api}/payments", json={"amount_nano": DEPOSIT}))
                eventually(lambda: not caller.stopped(), message="a top-up lets calls go on")
                assert caller.spent > DEPOSIT - WORST_CALL
            _billed(staff, member, tenant, caller)


def _known(caller: Caller) -> bool:
    try:
        caller.call()
    except (openai.AuthenticationError, openai.RateLimitError):
        return False  # neither the key nor the money has come that far
    return True


def _until_it_ends(caller: Caller, hooks: Hooks) -> None:
    """Warned before, then stopped with less left than a call may cost."""
    while caller.spent < DEPOSIT * 0.81:
        assert not caller.ended(), caller
    eventually(lambda: 80 in hooks.percents(), seconds=120, message=lambda: f"a warning: {hooks.events}")
    while not caller.ended():
        assert caller.spent <= DEPOSIT, caller
    assert DEPOSIT - WORST_CALL < caller.spent <= DEPOSIT, caller


def _billed(staff: httpx.Client, member: httpx.Client, tenant: str, caller: Caller) -> None:
    """Check that the month's draft, the books and the report equal the application's usage."""
    days = {"start": f"{datetime.now(UTC):%Y-%m}-01", "end": f"{datetime.now(UTC):%Y-%m-%d}"}

    def reported() -> dict[str, Any]:
        total: dict[str, Any] = done(member.get("/api/v1/usage", params=days))["total"]
        return total

    eventually(lambda: reported()["requests"] == caller.calls, message=lambda: f"all usage: {reported()}")
    invoice = done(staff.post(f"/api/v1/tenants/{tenant}/invoices", json={"month": days["start"]}))
    lines = done(member.get(f"/api/v1/invoices/{invoice['id']}/lines"))["results"]
    balance = done(member.get("/api/v1/billing"))
    entries = done(member.get("/api/v1/billing/journal?page_size=200"))["results"]
    usage = [entry["amount_nano"] for entry in entries if entry["kind"] == "usage"]
    told = {
        "report": int(Decimal(reported()["price"]) * 10**9),
        "invoice": invoice["lines_nano"],
        "its lines": sum(line["amount_nano"] for line in lines),
        "paid by what is prepaid": invoice["prepaid_nano"],
        "journal": sum(usage),
        "not invoiced yet": balance["unbilled"],
        "no longer available": 2 * DEPOSIT - balance["available"],
    }
    assert told == dict.fromkeys(told, caller.spent)
    assert (invoice["due_nano"], balance["prepaid"]) == (0, 2 * DEPOSIT)
