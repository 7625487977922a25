"""Keys over HTTP: restrictions, both secrets of a rotation, and no secret in the log."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import httpx
import openai
import pytest

from contracts.keys import KeyRoute, OldSecret
from tests.gateway.conftest import ACME, FLEET_TOKEN, ControlPlane, GatewayProcess
from tests.gateway.security.conftest import held
from tests.gateway.test_app import ask, client, post
from tests.waiting import eventually

BODY: dict[str, Any] = {"model": "bot@prod", "messages": ask(tokens=1)}


def test_a_key_held_to_a_model(strict: GatewayProcess) -> None:
    with client(strict, "gw_models_m") as api:
        assert [model.id for model in api.models.list()] == ["bot@prod"]
        assert api.chat.completions.create(model="bot@prod", messages=ask(tokens=1)).choices
        for model in ("bot", "bot@v1", "base", "hive", "nothing"):
            with pytest.raises(openai.NotFoundError) as caught:
                api.chat.completions.create(model=model, messages=ask(tokens=1))
            assert caught.value.code == "model_not_found"
            assert "This key may call: bot@prod." in caught.value.message
            with pytest.raises(openai.NotFoundError):
                api.models.retrieve(model)


def test_a_key_held_to_endpoints(strict: GatewayProcess) -> None:
    with client(strict, "gw_endpoints_e") as api:
        assert api.chat.completions.create(model="bot", messages=ask(tokens=1)).choices
        assert len(list(api.models.list())) == 3
        for call in (
            lambda: api.completions.create(model="bot", prompt="x"),
            lambda: api.embeddings.create(model="bot", input="x"),
            lambda: api.responses.create(model="bot", input="x"),
        ):
            with pytest.raises(openai.PermissionDeniedError) as caught:
                call()
            assert (caught.value.status_code, caught.value.code) == (403, "missing_scope")
    # The answer that an Idempotency-Key stands for is behind the same door.
    answer = httpx.post(
        strict.url + "/v1/completions",
        json={"model": "bot", "prompt": "x"},
        headers={"authorization": "Bearer gw_endpoints_e", "idempotency-key": "once"},
    )
    assert answer.json()["error"]["code"] == "missing_scope"


def test_a_key_held_to_networks(strict: GatewayProcess) -> None:
    assert post(strict, BODY, "gw_local_l").status_code == 200
    refused = post(strict, BODY, "gw_networks_n")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "ip_not_authorized")
    assert "127.0.0.1" in refused.json()["error"]["message"]
    # 127.0.0.1 is a proxy of ours: it tells whom it speaks for.
    for forwarded, status in (
        ("192.0.2.8", 200),
        ("2001:db8::8", 200),
        ("203.0.113.8", 403),
        ("192.0.2.8, 203.0.113.8", 403),
        ("203.0.113.8, 192.0.2.8", 200),
        ("nonsense", 403),
    ):
        answer = post(strict, BODY, "gw_networks_n", **{"x-forwarded-for": forwarded})
        assert answer.status_code == status, forwarded


def test_both_secrets_of_a_rotation(strict: GatewayProcess, control_plane: ControlPlane) -> None:
    digests = [hashlib.sha256(secret.encode()).hexdigest() for secret in ("secret1", "fresh")]
    version = httpx.get(strict.url + "/readyz").json()["routes_version"]
    until = time.time() + 60
    control_plane.change(
        version + 1, "keys/k1", KeyRoute("acme", digests[1], old=OldSecret(digests[0], until))
    )
    strict.wait_version(version + 1)
    assert [post(strict, BODY, key).status_code for key in (ACME, "gw_k1_fresh", "gw_k1_x")] == [
        200,
        200,
        401,
    ]
    passed = OldSecret(digests[0], time.time())
    control_plane.change(version + 2, "keys/k1", KeyRoute("acme", digests[1], old=passed))
    strict.wait_version(version + 2)
    assert [post(strict, BODY, key).status_code for key in (ACME, "gw_k1_fresh")] == [401, 200]
    control_plane.change(version + 3, "keys/k1", None)
    eventually(lambda: post(strict, BODY, "gw_k1_fresh").status_code == 401)


def test_a_scope_narrowed_by_a_delta(strict: GatewayProcess, control_plane: ControlPlane) -> None:
    version = httpx.get(strict.url + "/readyz").json()["routes_version"]
    assert post(strict, {**BODY, "model": "base"}, "gw_local_l").status_code == 200
    control_plane.change(version + 1, "keys/local", held("l", models=("bot",)))
    eventually(lambda: post(strict, {**BODY, "model": "base"}, "gw_local_l").status_code == 404)


def test_a_clients_cache_salt_reaches_no_backend(strict: GatewayProcess, upstream: str) -> None:
    refused = post(strict, {**BODY, "cache_salt": "mine"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_salt")
    answer = post(strict, BODY, **{"x-cache-salt": "mine"})
    log = httpx.get(upstream + "/log").json()
    [seen] = [item for item in log if item["id"] == answer.headers["x-request-id"]]
    assert bytes.fromhex(seen["body"]["cache_salt"]) == b"\xaa\x11"


def test_no_secret_stands_in_the_log(strict: GatewayProcess, control_plane: ControlPlane) -> None:
    """Whatever goes wrong: refusals, failures of the backend, a fault of the gateway's own."""
    before = strict.log.read_text()
    for fail in (401, 500, 503):
        post(strict, {**BODY, "messages": ask(fail=fail, note="prompt-hush")})
    post(strict, {"model": "bot", "stream": True, "messages": ask(tokens=4, delay=0.001, fail="cut")})
    post(strict, BODY, "gw_k1_wrong-hush")
    post(strict, BODY, **{"idempotency-key": "idempotency-hush"})
    httpx.get(strict.url + "/v1/models?api_key=query-hush", headers={"authorization": f"Bearer {ACME}"})
    version = httpx.get(strict.url + "/readyz").json()["routes_version"]
    # A table with a fault in it: the request ends in the gateway's own 500, and the log tells where.
    broken = held("secret1", networks=("no-network",))
    control_plane.change(version + 1, "keys/k1", broken)
    strict.wait_version(version + 1)
    assert post(strict, BODY).status_code == 500
    control_plane.change(version + 2, "keys/k1", KeyRoute("acme", hashlib.sha256(b"secret1").hexdigest()))
    strict.wait_version(version + 2)
    text = strict.log.read_text()
    records = [json.loads(line) for line in text.removeprefix(before).splitlines()]
    (fault,) = [record for record in records if "stack" in record]
    assert any("parse_network" in frame for frame in fault["stack"])
    digest = hashlib.sha256(b"secret1").hexdigest()
    for secret in ("secret1", digest, "hush", FLEET_TOKEN, "backend-key"):
        assert secret not in text, secret
