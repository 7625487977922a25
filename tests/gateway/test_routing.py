"""Who calls and what a model name means."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import pytest

from gateway.errors import InvalidApiKey, ModelNotFound, UpstreamUnreachable
from gateway.routing import authenticate, callable_models, resolve
from gateway.wire import BaseRoute, CopyRoute, KeyRoute, TenantRoute
from tests.gateway.conftest import ACME, reference, route_table

TABLE = route_table("http://a")


def test_a_right_key_names_its_caller() -> None:
    caller = authenticate(TABLE, ACME)
    assert (caller.key_id, caller.tenant, caller.project) == ("k1", "acme", "p1")


@pytest.mark.parametrize(
    "bearer",
    ["", "gw", "gw_", "gw_k1", "gw_k1_", "gw_k1_secret2", "gw_k9_secret1", "sk_k1_secret1", "gw_k1_secret1 ",
     "gw_k1_secrét1", "GW_k1_secret1"],
)  # fmt: skip
def test_a_wrong_key_is_refused(bearer: str) -> None:
    with pytest.raises(InvalidApiKey):
        authenticate(TABLE, bearer)


def test_the_entry_of_nobody_opens_nothing() -> None:
    # The look-up of an unknown key compares with a digest of zeros; no secret may match it by its id.
    with pytest.raises(InvalidApiKey):
        authenticate(replace(TABLE, keys={}), "gw__")


def test_a_key_expires() -> None:
    digest = hashlib.sha256(b"secret1").hexdigest()
    for expires_at, right in ((time.time() + 60, True), (time.time() - 1, False)):
        table = replace(TABLE, keys={"k1": KeyRoute("acme", digest, expires_at=expires_at)})
        if right:
            assert authenticate(table, ACME).tenant == "acme"
        else:
            with pytest.raises(InvalidApiKey):
                authenticate(table, ACME)


def test_a_key_without_its_tenant_is_refused() -> None:
    with pytest.raises(InvalidApiKey):
        authenticate(replace(TABLE, tenants={}), ACME)


@pytest.mark.parametrize(
    ("model", "version", "alias"),
    [("bot", 1, ""), ("bot@prod", 2, "prod"), ("bot@v1", 1, ""), ("bot@v2", 2, ""), ("base", None, "")],
)
def test_names_resolve(model: str, version: int | None, alias: str) -> None:
    found = resolve(TABLE, "acme", model)
    assert found.base == "base"
    assert found.alias == alias
    assert found.adapter == (None if version is None else reference("acme", "bot", version))
    assert [copy.id for copy in found.copies] == ["copy-1"]


@pytest.mark.parametrize(
    "model", ["hive", "hive@v1", "nothing", "bot@v3", "bot@staging", "bot@", "bot@v01", "base@v1", "@v1"]
)
def test_what_the_tenant_lacks_is_not_found(model: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(TABLE, "acme", model)
    assert "base, bot, bot@prod" in str(caught.value)


def test_unknown_and_another_tenants_read_alike() -> None:
    messages = []
    for model in ("hive", "none"):
        with pytest.raises(ModelNotFound) as caught:
            resolve(TABLE, "acme", model)
        messages.append(str(caught.value).replace(model, "X"))
    assert messages[0] == messages[1]


def test_a_tenant_may_be_kept_from_a_base() -> None:
    table = replace(TABLE, tenants={"acme": TenantRoute("Acme", "aa", bases=())})
    assert [name for name, _ in callable_models(table, "acme")] == ["bot", "bot@prod"]
    with pytest.raises(ModelNotFound):
        resolve(table, "acme", "base")


def test_a_base_without_a_copy_is_unreachable() -> None:
    table = replace(TABLE, bases={"base": BaseRoute("base", 2048)})
    for model in ("base", "bot"):
        with pytest.raises(UpstreamUnreachable):
            resolve(table, "acme", model)


def test_an_adapter_stays_with_its_copy_when_others_come_and_go() -> None:
    copies = tuple(CopyRoute(f"c{number}", "worker", "http://a") for number in range(6))
    table = replace(TABLE, bases={"base": BaseRoute("base", 2048, copies)})
    chosen = resolve(table, "acme", "bot").copies
    assert sorted(copy.id for copy in chosen) == [f"c{number}" for number in range(6)]
    fewer = replace(
        table, bases={"base": BaseRoute("base", 2048, tuple(c for c in copies if c != chosen[1]))}
    )
    assert resolve(fewer, "acme", "bot").copies == (chosen[0], *chosen[2:])
    assert len({resolve(table, "acme", "base").copies[0].id for _ in range(200)}) == 6
