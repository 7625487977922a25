"""Rules that hold at every endpoint: authentication, CORS and body size."""

from __future__ import annotations

import httpx
import pytest

from gateway.api.bodies import BODY_BYTES
from gateway.completions import PATHS
from tests.gateway.conftest import ACME, GatewayProcess

KEY = {"authorization": f"Bearer {ACME}"}


@pytest.fixture(params=sorted(PATHS))
def url(request: pytest.FixtureRequest, gateway: GatewayProcess) -> str:
    return f"{gateway.url}{request.param}"


def test_every_endpoint_of_the_api_is_here() -> None:
    scoring = {"/v1/score", "/v1/rerank", "/v1/classify"}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", *scoring} == PATHS


def test_a_key_is_needed(url: str) -> None:
    for headers in ({}, {"authorization": "Bearer gw_k1_wrong"}):
        answer = httpx.post(url, json={"model": "base"}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["x-request-id"]


def test_a_body_has_a_largest_size(url: str) -> None:
    answer = httpx.post(url, content=b"x" * (BODY_BYTES + 1), headers=KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
    fits = httpx.post(url, content=b"x" * BODY_BYTES, headers=KEY)
    assert (fits.status_code, fits.json()["error"]["code"]) == (400, "invalid_value")


def test_only_post_is_taken(url: str) -> None:
    for method in ("GET", "DELETE", "PUT"):
        refused = httpx.request(method, url, headers=KEY)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST, OPTIONS")


def test_browsers_of_granted_origins_may_call_it(url: str) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "idempotency-key"}
    granted = httpx.options(url, headers={**asks, "origin": "http://web.test"})
    assert granted.status_code == 204
    assert granted.headers["access-control-allow-origin"] == "http://web.test"
    assert "idempotency-key" in granted.headers["access-control-allow-headers"]
    other = httpx.options(url, headers={**asks, "origin": "http://evil.test"})
    assert "access-control-allow-origin" not in other.headers
    refused = httpx.post(url, content=b"{", headers={**KEY, "origin": "http://web.test"})
    assert refused.status_code == 400
    assert refused.headers["access-control-allow-origin"] == "http://web.test"
    exposed = refused.headers["access-control-expose-headers"]
    # The official client in a browser reads them to know whether and when to try again.
    assert all(name in exposed for name in ("idempotent-replayed", "x-should-retry", "retry-after-ms"))


def test_a_client_does_not_choose_the_request_id(url: str) -> None:
    answer = httpx.post(url, content=b"{", headers={**KEY, "x-request-id": "mine"})
    assert answer.headers["x-request-id"] != "mine"


def test_other_paths_are_told_what_there_is(gateway: GatewayProcess) -> None:
    message = httpx.get(gateway.url + "/v1/images", headers=KEY).json()["error"]["message"]
    assert all(path in message for path in PATHS)
