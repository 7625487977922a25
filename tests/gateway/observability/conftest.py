"""Scrapes of real gateways, read by Prometheus' own parser, and a collector of OTLP traces."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.conftest import GatewayProcess

TOKEN = "metrics-token"
PREFIX = "graftwork_gateway_"


class Scrape:
    """The samples of one `GET /metrics`, by name without the prefix."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [
            (sample.name.removeprefix(PREFIX), sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def since(self, earlier: Scrape) -> Scrape:
        """Return what was counted after `earlier`, for counters of a gateway that other tests used too."""
        before = {(name, *sorted(labels.items())): value for name, labels, value in earlier._samples}
        difference = Scrape("")
        difference._samples = [
            (name, labels, value - before.get((name, *sorted(labels.items())), 0.0))
            for name, labels, value in self._samples
        ]
        return difference

    def sum(self, name: str, **labels: str) -> float:
        """Over all series of `name` that have `labels`."""
        return sum(value for _, value in self.series(name, **labels))

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        return [
            (own, value)
            for found, own, value in self._samples
            if found == name and labels.items() <= own.items()
        ]

    def values(self, name: str, label: str) -> set[str]:
        """Values that `label` has among the series of `name`."""
        return {own[label] for own, _ in self.series(name)}


def scrape(gateway: GatewayProcess) -> Scrape:
    answer = httpx.get(gateway.url + "/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)


@dataclass(slots=True)
class Collector:
    """Receives OTLP over HTTP and decodes it, or answers `status`."""

    status: int = 200
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    posts: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spans(self, service: str = "") -> list[Span]:
        """Every span received, of one service or of all."""
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            if not service or attributes(resource.resource)["service.name"] == service
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(owner: Any) -> dict[str, Any]:
    """Attributes of a span or resource as Python has them."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in owner.attributes}


@pytest.fixture(scope="session")
def shared_collector() -> Iterator[Collector]:
    """One collector for all tests, so that they can share a gateway that sends to it."""
    with _collector() as received:
        yield received


@pytest.fixture
def collector() -> Iterator[Collector]:
    with _collector() as received:
        yield received


@contextmanager
def _collector() -> Iterator[Collector]:
    received = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            received.posts += 1
            request = ExportTraceServiceRequest()
            try:
                request.ParseFromString(data)
            except DecodeError:
                self.send_error(400)
                return
            if received.status == 200 and self.path == "/v1/traces":
                received.requests.append(request)
            body = ExportTraceServiceResponse().SerializeToString()
            self.send_response(received.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield received
    server.shutdown()
    server.server_close()
    thread.join()
