"""Access of a key: its scope, its two secrets, and its allowed networks."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import Any

import pytest

from contracts.addresses import Networks
from contracts.keys import KeyRoute, KeyScope, OldSecret
from contracts.route_table import RouteTable
from gateway.errors import (
    AddressNotAllowed,
    EndpointNotAllowed,
    InvalidApiKey,
    ModelNotFound,
    TenantSuspended,
    render,
)
from gateway.routing import Authorizer, Caller, authenticate, callable_models, fallbacks, resolve
from tests.gateway.conftest import ACME, route_table

TABLE = route_table("http://a")
CHAT = "/v1/chat/completions"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def keyed(key: KeyRoute) -> RouteTable:
    return replace(TABLE, keys={"k1": key})


def held(**scope: tuple[str, ...]) -> RouteTable:
    return keyed(KeyRoute("acme", digest("secret1"), scope=KeyScope(**scope)))


def authorize(
    table: RouteTable, path: str = CHAT, peer: str = "192.0.2.1", proxies: str = "", **headers: str
) -> Caller:
    sent = [(b"authorization", f"Bearer {ACME}".encode())]
    sent += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {"path": path, "headers": sent, "client": (peer, 1) if peer else None}
    return Authorizer(Networks(proxies.split())).authorize(table, scope)


def test_a_key_without_a_scope_opens_all() -> None:
    assert authorize(TABLE) == Caller("k1", "acme", "p1")


def test_a_suspended_tenants_right_key_is_told_so_and_a_wrong_one_nothing() -> None:
    tenants = {**TABLE.tenants, "acme": replace(TABLE.tenants["acme"], suspended=True)}
    table = replace(TABLE, tenants=tenants)
    with pytest.raises(TenantSuspended, match="acme of this API key is suspended") as caught:
        authorize(table)
    status, body = render(caught.value)[:2]
    assert status == 403
    assert b'"tenant_suspended"' in body
    with pytest.raises(InvalidApiKey):
        authenticate(table, f"{ACME}wrong")


def test_endpoints() -> None:
    table = held(endpoints=("chat/completions", "models"))
    for path in (CHAT, "/v1/models", "/v1/models/bot"):
        assert authorize(table, path).tenant == "acme"
    for path in ("/v1/completions", "/v1/embeddings", "/v1/responses"):
        with pytest.raises(
            EndpointNotAllowed, match=f"may not call {path}.*/v1/chat/completions, /v1/models"
        ):
            authorize(table, path)
    with pytest.raises(EndpointNotAllowed) as caught:
        authorize(held(endpoints=("chat/completions",)), "/v1/models")
    assert render(caught.value)[0] == 403


@pytest.mark.parametrize(
    ("peer", "headers", "right"),
    [
        ("192.0.2.9", {}, True),
        ("::ffff:192.0.2.9", {}, True),
        ("2001:db8::7", {}, True),
        ("203.0.113.1", {}, False),
        ("203.0.113.1", {"x_forwarded_for": "192.0.2.9"}, False),
        ("10.0.0.1", {"x_forwarded_for": "192.0.2.9"}, True),
        ("10.0.0.1", {"x_forwarded_for": "192.0.2.9, 203.0.113.1"}, False),
        ("10.0.0.1", {"x_forwarded_for": "192.0.2.9, junk"}, False),
        ("10.0.0.1", {}, False),
        ("", {}, False),
    ],
)
def test_networks(peer: str, headers: dict[str, str], right: bool) -> None:
    table = held(networks=("192.0.2.0/24", "2001:db8::/32"))
    if right:
        assert authorize(table, CHAT, peer, "10.0.0.0/8", **headers).tenant == "acme"
        return
    with pytest.raises(AddressNotAllowed) as caught:
        authorize(table, CHAT, peer, "10.0.0.0/8", **headers)
    assert (caught.value.status, caught.value.code) == (403, "ip_not_authorized")


def test_a_wrong_secret_learns_nothing_of_the_keys_scope() -> None:
    table = replace(held(networks=("192.0.2.0/24",)), keys={})
    with pytest.raises(InvalidApiKey):
        authorize(table, "/v1/embeddings", "203.0.113.1")
    wrong = keyed(KeyRoute("acme", digest("other"), scope=KeyScope(networks=("192.0.2.0/24",))))
    with pytest.raises(InvalidApiKey):
        authorize(wrong, CHAT, "203.0.113.1")


@pytest.mark.parametrize(
    ("allowed", "right", "listed"),
    [
        ({"base"}, {"base"}, ["base"]),
        ({"bot"}, {"bot", "bot@prod", "bot@v1", "bot@v2"}, ["bot", "bot@prod"]),
        ({"bot@prod"}, {"bot@prod"}, ["bot@prod"]),
        ({"bot@v1", "base"}, {"bot@v1", "base"}, ["base"]),
        ({"hive", "nothing"}, set(), []),
    ],
)
def test_models(allowed: set[str], right: set[str], listed: list[str]) -> None:
    caller = authorize(held(models=tuple(allowed)))
    for model in ("base", "bot", "bot@prod", "bot@v1", "bot@v2", "hive", "nothing"):
        if model in right:
            assert resolve(TABLE, caller.tenant, model, allowed=caller.models).base == "base"
            continue
        with pytest.raises(ModelNotFound) as caught:
            resolve(TABLE, caller.tenant, model, allowed=caller.models)
        # The message is that of an unknown model and lists only the key's own names.
        assert caught.value.message == (
            f"The model {model!r} does not exist or you do not have access to it. "
            f"This key may call: {', '.join(listed) or 'no model yet'}."
        )
    names = [name for name, _ in callable_models(TABLE, caller.tenant, allowed=caller.models)]
    assert names == listed


def test_a_fallback_outside_of_the_scope_is_left_out() -> None:
    bot = replace(TABLE.adapters["acme"]["bot"], fallbacks={"": ("base", "bot@v2")})
    table = replace(TABLE, adapters={"acme": {"bot": bot}})
    found = resolve(table, "acme", "bot", allowed={"bot"})
    assert [other.model for other in fallbacks(table, "acme", found, allowed={"bot"})] == ["bot@v2"]
    assert [other.model for other in fallbacks(table, "acme", found)] == ["base", "bot@v2"]


def test_both_secrets_are_right_until_the_old_one_ends() -> None:
    now = time.time()
    for until, right in ((now + 60, True), (now - 1, False)):
        table = keyed(KeyRoute("acme", digest("new"), old=OldSecret(digest("secret1"), until)))
        assert authenticate(table, "gw_k1_new")[0] == "k1"
        if right:
            assert authenticate(table, ACME)[0] == "k1"
        else:
            with pytest.raises(InvalidApiKey):
                authenticate(table, ACME)
        with pytest.raises(InvalidApiKey):
            authenticate(table, "gw_k1_other")


def test_an_old_secret_does_not_outlive_its_key() -> None:
    old = OldSecret(digest("secret1"), time.time() + 60)
    table = keyed(KeyRoute("acme", digest("new"), expires_at=time.time() - 1, old=old))
    for bearer in (ACME, "gw_k1_new"):
        with pytest.raises(InvalidApiKey):
            authenticate(table, bearer)
