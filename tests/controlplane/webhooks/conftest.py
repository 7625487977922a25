"""A loopback receiver in this process, and an endpoint that leads to it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pytest_django import Settings

from controlplane.platform.open_endpoints import OpenEndpoints
from controlplane.tenants.models import Tenant
from controlplane.webhooks.events import CHOOSABLE
from controlplane.webhooks.models import WebhookEndpoint
from controlplane.webhooks.services import endpoint_create


class Receiver:
    """Keeps what it is sent; answers `status` and `body`."""

    def __init__(self) -> None:
        receiver = self
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.status, self.body = 200, b"fine"
        self.headers: dict[str, str] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                sent = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append((sent, body))
                self.send_response(receiver.status)
                for name, value in {"content-length": str(len(receiver.body)), **receiver.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(receiver.body)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hooks"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def receiver(graftwork: object, settings: Settings) -> Iterator[Receiver]:
    """Reachable, as the operator may open a local endpoint."""
    receiver = Receiver()
    opened = OpenEndpoints.parse([f"127.0.0.1:{receiver.port}"])
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=opened)
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture
def endpoint(tenant: Tenant, receiver: Receiver) -> tuple[WebhookEndpoint, str]:
    """Acme's endpoint for all events, and its secret."""
    return endpoint_create(tenant=tenant, url=receiver.url, events=CHOOSABLE)
