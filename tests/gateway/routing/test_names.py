"""Resolution of API keys to callers and of model names to routes."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import pytest

from contracts.base_routes import BaseRoute, CanaryRoute
from contracts.keys import KeyRoute
from contracts.route_table import RouteTable, TenantRoute
from gateway.errors import InvalidApiKey, ModelNotFound
from gateway.routing import authenticate, callable_models, dropped_parameters, fallbacks, resolve
from gateway.routing.names import FALLBACK
from tests.gateway.conftest import ACME, reference, route_table

TABLE = route_table("http://a")


def test_a_right_key_names_its_caller() -> None:
    assert authenticate(TABLE, ACME) == ("k1", TABLE.keys["k1"])


@pytest.mark.parametrize(
    "bearer",
    [
        "",
        "gw",
        "gw_",
        "gw_k1",
        "gw_k1_",
        "gw_k1_secret2",
        "gw_k9_secret1",
        "sk_k1_secret1",
        "gw_k1_secret1 ",
        "gw_k1_secrét1",
        "GW_k1_secret1",
    ],
)
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
            assert authenticate(table, ACME)[1].tenant == "acme"
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


def test_names_of_two_tenants_never_meet() -> None:
    """Tenants do not share `bot`, no adapter hides a base model, and engine names are not callable."""
    hive = TABLE.adapters["umbrella"]["hive"]
    adapters = {**TABLE.adapters, "umbrella": {"hive": hive, "bot": hive, "base": hive}}
    table = replace(TABLE, adapters=adapters)
    assert resolve(table, "acme", "bot").adapter == reference("acme", "bot", 1)
    assert resolve(table, "umbrella", "bot").adapter == reference("umbrella", "hive")
    assert resolve(table, "acme", "base").adapter is None
    for tenant in ("acme", "umbrella"):
        for name in (reference("acme", "bot", 1).name, reference("umbrella", "hive").name):
            with pytest.raises(ModelNotFound):
                resolve(table, tenant, name)


def test_a_tenant_may_be_kept_from_a_base() -> None:
    table = replace(TABLE, tenants={"acme": TenantRoute("Acme", "aa", bases=())})
    assert [name for name, _ in callable_models(table, "acme")] == ["bot", "bot@prod"]
    with pytest.raises(ModelNotFound):
        resolve(table, "acme", "base")


@pytest.mark.parametrize("model", ["base", "bot", "bot@prod", "bot@v2", "bot@nothing"])
def test_an_adapters_requests_drop_what_its_base_model_has_dropped(model: str) -> None:
    base = replace(TABLE.bases["base"], dropped_parameters=("seed",))
    table = replace(TABLE, bases={"base": base, "other": BaseRoute("other", 8)})
    assert dropped_parameters(table, "acme", model) == ("seed",)
    assert dropped_parameters(table, "acme", "other") == ()


def test_nothing_is_dropped_for_a_model_that_the_caller_may_not_call() -> None:
    """A refused parameter must not reveal that the model exists."""
    base = replace(TABLE.bases["base"], dropped_parameters=("seed",))
    table = replace(TABLE, bases={"base": base}, tenants={"acme": TenantRoute("Acme", "aa11", bases=())})
    assert dropped_parameters(table, "acme", "base") == ()
    assert dropped_parameters(table, "acme", "hive") == ()
    assert dropped_parameters(table, "acme", "bot", allowed=("other",)) == ()
    assert dropped_parameters(table, "acme", "bot@prod", allowed=("bot",)) == ("seed",)


def test_a_base_without_a_copy_resolves_to_none() -> None:
    for bases in ({"base": BaseRoute("base", 2048)}, {}):
        found = resolve(replace(TABLE, bases=bases), "acme", "bot")
        assert (found.base, found.copies, found.model) == ("base", (), "bot@v1")


def split(*arms: tuple[int, int], **fallbacks: tuple[str, ...]) -> RouteTable:
    """`bot@prod` split among `arms`; `fallbacks` by alias, `bare` for the bare name."""
    bot = TABLE.adapters["acme"]["bot"]
    by_alias = {"" if alias == "bare" else alias: models for alias, models in fallbacks.items()}
    bot = replace(bot, splits={"prod": arms} if arms else {}, fallbacks=by_alias)
    return replace(TABLE, adapters={**TABLE.adapters, "acme": {"bot": bot}})


def test_a_split_alias_names_its_arm_and_a_fixed_version_never_splits() -> None:
    table = split((1, 50), (2, 50))
    arms = [resolve(table, "acme", "bot@prod", f"user-{number}") for number in range(200)]
    assert {(found.alias, found.arm, found.model) for found in arms} == {
        ("prod", "v1", "bot@v1"),
        ("prod", "v2", "bot@v2"),
    }
    for model, version in (("bot@v1", 1), ("bot@v2", 2), ("bot", 1)):
        for number in range(50):
            found = resolve(table, "acme", model, f"user-{number}")
            assert (found.arm, found.adapter) == ("", reference("acme", "bot", version))


def test_an_arm_whose_version_is_gone_gets_nobody() -> None:
    for arms in (((1, 10), (3, 90)), ((1, 100), (2, 0))):
        found = [resolve(split(*arms), "acme", "bot@prod", str(number)) for number in range(50)]
        assert {item.arm for item in found} == {"v1"}
    assert resolve(split((3, 100)), "acme", "bot@prod", "x").model == "bot@v2"


def test_fallbacks_are_the_tenants_own_in_its_order() -> None:
    table = split(prod=("hive", "bot@v1", "nothing", "bot@v2", "base"), bare=("base",))
    found = resolve(table, "acme", "bot@prod")
    # Not another tenant's, not an unknown one, and not what has just failed.
    others = list(fallbacks(table, "acme", found))
    assert [other.model for other in others] == ["bot@v1", "base"]
    assert {(other.alias, other.arm, other.fallbacks) for other in others} == {("prod", FALLBACK, ())}
    assert [other.model for other in fallbacks(table, "acme", resolve(table, "acme", "bot"))] == ["base"]
    assert list(fallbacks(table, "acme", resolve(table, "acme", "bot@v2"))) == []


def test_fallbacks_may_be_kept_from_a_base() -> None:
    table = replace(split(prod=("base",)), tenants={"acme": TenantRoute("Acme", "aa", bases=())})
    assert list(fallbacks(table, "acme", resolve(table, "acme", "bot@prod"))) == []


@pytest.mark.parametrize("model", ["base", "bot", "bot@prod", "bot@v1"])
def test_a_caller_is_on_one_side_of_a_canary_by_whatever_name_the_base_is_reached(model: str) -> None:
    route = route_table("http://a", "http://b").bases["base"]
    table = replace(TABLE, bases={"base": replace(route, canary=CanaryRoute("r", 50, ("copy-2",)))})
    sides = {user: resolve(table, "acme", model, user).passed_over for user in map(str, range(40))}
    assert set(sides.values()) == {("copy-1",), ("copy-2",)}
    assert sides == {user: resolve(table, "acme", "base", user).passed_over for user in sides}
    assert resolve(TABLE, "acme", model, "0").passed_over == ()
