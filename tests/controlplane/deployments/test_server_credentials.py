"""Tokens and headers of servers: stored sealed, published sealed for gateways, and never shown."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pytest_django import Settings

from contracts.base_routes import BaseRoute
from contracts.server_credentials import ServerCredentials
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.endpoints import copies_sync
from controlplane.deployments.copies.publishing import homes_publish
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.models import Copy, Target
from controlplane.deployments.provisioners.base import Endpoint
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.api import DeploymentTargetSerializer
from controlplane.deployments.targets.services import target_create, target_update
from controlplane.errors import InvalidInputError
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.models import RouteEntryRow
from gateway.routing.copy_headers import credentials_open
from tests.controlplane.deployments.conftest import TOKEN

pytestmark = pytest.mark.django_db
URL = "http://vllm:8000"
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
    copy = copy_register(base_model=tiny, kind="openai_http", url=URL, credentials=OWN)
    assert opened(tiny) == OWN
    assert copy.request_headers == {"authorization": "Bearer the-token", "x-cluster": "the-header"}
    assert_hidden(json.dumps(RouteEntryRow.objects.get(path="bases/tiny-base").entry))
    copy_register(base_model=tiny, kind="openai_http", url=URL)
    assert opened(tiny) == OWN, "registering it again keeps them"
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, fleet_token="next")
    homes_publish(tiny)
    assert opened(tiny, "next") == OWN
    copy_register(base_model=tiny, kind="openai_http", url=URL, credentials=ServerCredentials())
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
