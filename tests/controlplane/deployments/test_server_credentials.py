"""Tokens and headers of servers: stored sealed, published sealed for gateways, and never shown."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pytest_django import Settings

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute
from contracts.server_credentials import ServerCredentials
from controlplane.adapters.smoke import smoke_test
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.endpoints import copies_sync
from controlplane.deployments.copies.publishing import base_publish, homes_publish
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.deployments.models import Copy, Target
from controlplane.deployments.placement.memories import memories_read
from controlplane.deployments.provisioners.base import Endpoint
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.api import DeploymentTargetSerializer
from controlplane.deployments.targets.services import target_create, target_update
from controlplane.errors import InvalidInputError
from controlplane.fleet.polls import copies_poll
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.models import RouteEntryRow
from gateway.routing.copy_headers import credentials_open
from tests.controlplane.deployments.conftest import TOKEN

pytestmark = pytest.mark.django_db
URL = "http://vllm:8000"
NEXT_KEY = "the-next-key-of-32-letters-here!"
GATEWAYS_OWN = ("content-encoding", "expect", "keep-alive", "proxy-connection", "te", "trailer", "upgrade")
OWN = ServerCredentials("the-token", {"x-cluster": "the-header"})


def published(base: BaseModel) -> BaseRoute:
    return BaseRoute.from_dict(RouteEntryRow.objects.get(path=f"bases/{base.name}").entry)


def opened(base: BaseModel, fleet_token: str = TOKEN) -> ServerCredentials:
    (copy,) = published(base).copies
    return credentials_open(copy.credentials, fleet_token=fleet_token, copy_id=copy.id)


def assert_hidden(*texts: str) -> None:
    assert not any(secret in text for secret in ("the-token", "the-header") for text in texts)


def test_a_targets_credentials_are_sealed_and_not_shown() -> None:
    target = target_create(
        name="servers", kind="openai_http", urls=[URL], token=OWN.token, headers=OWN.headers
    )
    row = Target.objects.get(pk=target.pk)
    assert row.credentials == OWN
    shown = DeploymentTargetSerializer(row).data
    assert (shown["has_token"], shown["header_names"]) == (True, ["x-cluster"])
    target_update(target=row, token="")
    row.refresh_from_db()
    assert row.credentials == ServerCredentials("", OWN.headers)
    records = [json.dumps([item.before, item.after]) for item in AuditRecord.objects.all()]
    assert_hidden(row.sealed_credentials, json.dumps(shown, default=str), *records)


def test_gateways_get_a_copys_credentials_sealed_by_the_fleet_token(
    tiny: BaseModel, settings: Settings
) -> None:
    copy = copy_register(base_model=tiny, kind="openai_http", url=URL, token=OWN.token, headers=OWN.headers)
    assert opened(tiny) == OWN
    assert copy.request_headers == {"authorization": "Bearer the-token", "x-cluster": "the-header"}
    assert_hidden(json.dumps(RouteEntryRow.objects.get(path="bases/tiny-base").entry))
    copy_register(base_model=tiny, kind="openai_http", url=URL)
    assert opened(tiny) == OWN, "registering it again keeps them"
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, fleet_token="next")
    homes_publish(tiny)
    assert opened(tiny, "next") == OWN
    copy_register(base_model=tiny, kind="openai_http", url=URL, headers={"x-cluster": "another"})
    assert opened(tiny, "next") == ServerCredentials("the-token", {"x-cluster": "another"}), "the token stays"
    copy_register(base_model=tiny, kind="openai_http", url=URL, token="", headers={})
    assert Copy.objects.get().request_headers == {"authorization": f"Bearer {TOKEN}"}, "the installation's"


def test_a_deployments_copies_follow_a_change_of_the_targets_token(tiny: BaseModel) -> None:
    target = target_create(name="servers", kind="openai_http", urls=[URL])
    made = deployment_create(name="tiny", target=target, base_model=tiny)
    endpoint = Endpoint("openai_http", URL, credentials=OWN)
    copies_sync(deployment=made, endpoints=[endpoint])
    assert opened(tiny) == OWN
    changed = ServerCredentials("other", {})
    copies_sync(deployment=made, endpoints=[dataclasses.replace(endpoint, credentials=changed)])
    assert opened(tiny) == changed


@pytest.mark.parametrize(
    ("hosting", "options", "bound"),
    [
        ("on_demand", {"max_cpu_loras": 7}, 7),
        ("on_demand", {"max_loras": 2}, 8),
        ("on_demand", {}, 0),
        ("api", {"max_cpu_loras": 7}, 0),
    ],
)
def test_gateways_bound_loaded_adapters_by_the_stated_cache_where_they_alone_load(
    tiny: BaseModel, hosting: str, options: dict[str, int], bound: int
) -> None:
    target = target_create(name="servers", kind="openai_http", urls=[URL])
    made = deployment_create(name="tiny", target=target, base_model=tiny, hosting=hosting, options=options)
    copies_sync(deployment=made, endpoints=[Endpoint("openai_http", URL, True)])
    assert [copy.max_adapters for copy in published(tiny).copies] == [bound]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"token": "with space\n"}, "token"),
        ({"headers": {"Host": "x"}}, "headers"),
        ({"headers": {"host": "x"}}, "headers"),
        *(({"headers": {name: "x"}}, "headers") for name in GATEWAYS_OWN),
        ({"headers": {"x-a": "b\r\nx-c: d"}}, "headers"),
        ({"headers": {"x-a": ""}}, "headers"),
        ({"headers": {f"x-{number}": "a" for number in range(17)}}, "headers"),
        ({"token": "t", "headers": {"authorization": "Basic x"}}, "headers"),
        ({"kind": "local", "urls": [], "token": "t"}, "token"),
        ({"kind": "local", "urls": [], "headers": {"x-a": "b"}}, "headers"),
    ],
)
def test_bad_credentials_are_refused_by_name(values: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        target_create(**{"name": "servers", "kind": "openai_http", "urls": [URL], **values})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.fixture
def sealed_by_a_lost_key(tiny: BaseModel, settings: Settings) -> tuple[Copy, Copy]:
    """Two copies; the key that sealed the first one's credentials has been taken out of the settings."""
    first, second = (
        copy_register(
            base_model=tiny, kind="openai_http", url=f"http://vllm-{number}:8000", token=f"t{number}"
        )
        for number in (1, 2)
    )
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sealing_keys=(NEXT_KEY,))
    return first, copy_register(base_model=tiny, kind="openai_http", url=second.url, token="t2", headers={})


def test_an_unreadable_credential_concerns_its_own_copy_alone(
    tiny: BaseModel, sealed_by_a_lost_key: tuple[Copy, Copy], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = sealed_by_a_lost_key
    routes = {copy.id: copy for copy in published(tiny).copies}
    tokens = {
        pk: credentials_open(route.credentials, fleet_token=TOKEN, copy_id=pk).token
        for pk, route in routes.items()
    }
    assert tokens == {first.pk: "t1", second.pk: "t2"}, "gateways keep what they know"
    third = copy_register(base_model=tiny, kind="openai_http", url=URL)
    assert f"copy {first.pk} keeps its route" in caplog.text
    assert "enter the secret again" in caplog.text
    assert {copy.id for copy in published(tiny).copies} == {first.pk, second.pk, third.pk}
    memories = memories_read([first, second], seconds=5)
    assert "enter the secret again" in str(memories[first.pk])
    assert "does not respond" in str(memories[second.pk])
    Copy.objects.update(loads_adapters=True)
    ref = AdapterRef("acme.bot.v1." + "0" * 12, "file:///nowhere/", "0" * 64, 8)
    _, status, detail = smoke_test(base_model=tiny, ref=ref, progress=lambda: None)
    assert (status, f"{first.pk}: its credentials cannot be opened" in detail) == ("skipped", True), detail
    polled = copies_poll([first, second])
    assert "GRAFTWORK_SEALING_KEYS" in polled[first.pk].error
    assert "GRAFTWORK_SEALING_KEYS" not in polled[second.pk].error
    with pytest.raises(InvalidInputError, match="state both token and headers"):
        copy_register(base_model=tiny, kind="openai_http", url=first.url, token="new")
    copy_register(base_model=tiny, kind="openai_http", url=first.url, token="new", headers={})
    assert Copy.objects.get(pk=first.pk).credentials == ServerCredentials("new")


def test_a_copy_whose_credentials_gateways_do_not_know_either_has_no_route(
    tiny: BaseModel, sealed_by_a_lost_key: tuple[Copy, Copy]
) -> None:
    first, second = sealed_by_a_lost_key
    RouteEntryRow.objects.filter(path=f"bases/{tiny.name}").delete()
    homes_publish(tiny)
    base_publish(tiny)
    assert [copy.id for copy in published(tiny).copies] == [second.pk]
    copy_remove(copy=first)
    assert [copy.id for copy in published(tiny).copies] == [second.pk]


def test_a_deployments_endpoint_replaces_an_unreadable_credential(
    tiny: BaseModel, settings: Settings
) -> None:
    target = target_create(name="servers", kind="openai_http", urls=[URL], token="the-token")
    made = deployment_create(name="tiny", target=target, base_model=tiny)
    copies_sync(deployment=made, endpoints=[Endpoint("openai_http", URL, credentials=OWN)])
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sealing_keys=(NEXT_KEY,))
    changes = AuditRecord.objects.count()
    copies_sync(deployment=made, endpoints=[Endpoint("openai_http", URL, credentials=None)])
    assert opened(tiny) == OWN, "an endpoint without readable ones changes nothing"
    assert AuditRecord.objects.count() == changes
    assert DeploymentTargetSerializer(target).data["header_names"] == []
    with pytest.raises(InvalidInputError, match="state both"):
        target_update(target=target, token="new")
    target_update(target=target, token="new", headers={})
    new = ServerCredentials("new")
    copies_sync(deployment=made, endpoints=[Endpoint("openai_http", URL, credentials=new)])
    assert opened(tiny) == new
