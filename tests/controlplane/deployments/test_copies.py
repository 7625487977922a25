"""Copies of each kind through REST: what is stored, what reaches the route table, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from contracts.base_routes import BaseRoute, SageMakerTarget
from contracts.server_credentials import ServerCredentials
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.services import user_create

pytestmark = pytest.mark.django_db

LMI_FORM = {"container": "lmi", "loaded": None}
SAGEMAKER = {"region": "eu-central-1", "endpoint": "llama", "component": "llama-base"}


@pytest.fixture
def staff() -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def register(staff: Client, base_model: BaseModel, **fields: Any) -> Any:
    body = {"base_model": base_model.name, **fields}
    return staff.post("/api/v1/copies", body, content_type="application/json")


def published(base_model: BaseModel) -> BaseRoute:
    return BaseRoute.from_dict(RouteEntryRow.objects.get(path=f"bases/{base_model.name}").entry)


def test_a_sagemaker_copy_reaches_the_route_table_with_all_it_needs(
    staff: Client, base_model: BaseModel
) -> None:
    answer = register(staff, base_model, kind="sagemaker", sagemaker=SAGEMAKER)
    assert answer.status_code == 201, answer.content
    assert answer.json()["sagemaker"] == {
        **SAGEMAKER,
        "adapters": "components",
        "api": "invocations",
        **LMI_FORM,
    }
    (copy,) = published(base_model).copies
    assert (copy.kind, copy.url) == ("sagemaker", "")
    assert copy.sagemaker == SageMakerTarget("eu-central-1", "llama", "llama-base")


def test_the_same_place_again_changes_how_it_is_spoken_to(staff: Client, base_model: BaseModel) -> None:
    first = register(staff, base_model, kind="sagemaker", sagemaker=SAGEMAKER).json()
    again = register(staff, base_model, kind="sagemaker", sagemaker={**SAGEMAKER, "adapters": "name"}).json()
    other = register(
        staff, base_model, kind="sagemaker", sagemaker={**SAGEMAKER, "component": "second"}
    ).json()
    assert again["id"] == first["id"] != other["id"]
    targets = {copy.id: copy.sagemaker for copy in published(base_model).copies}
    assert targets == {
        first["id"]: SageMakerTarget("eu-central-1", "llama", "llama-base", "name"),
        other["id"]: SageMakerTarget("eu-central-1", "llama", "second"),
    }


def test_a_tgi_copy_has_the_adapters_that_its_operator_names_and_else_none(
    staff: Client, base_model: BaseModel
) -> None:
    tgi = {**SAGEMAKER, "adapters": "name", "container": "tgi"}
    answer = register(staff, base_model, kind="sagemaker", sagemaker=tgi)
    assert answer.json()["sagemaker"]["loaded"] == []
    loaded = ["t_acme.a_bot.v1.0123456789ab"]
    register(staff, base_model, kind="sagemaker", sagemaker={**tgi, "loaded": loaded})
    (copy,) = published(base_model).copies
    assert copy.sagemaker is not None
    assert (copy.sagemaker.container, copy.sagemaker.loaded) == ("tgi", tuple(loaded))


def test_vllm_copies_may_load_adapters(staff: Client, base_model: BaseModel) -> None:
    url = "http://vllm.test:8000/v1"
    answer = register(staff, base_model, kind="openai_http", url=url, loads_adapters=True)
    assert answer.json()["sagemaker"] is None
    (copy,) = published(base_model).copies
    assert (copy.url, copy.loads_adapters, copy.sagemaker) == ("http://vllm.test:8000", True, None)


@pytest.mark.parametrize(
    ("fields", "attr"),
    [
        ({"kind": "worker"}, "url"),
        ({"kind": "worker", "url": "http://w", "loads_adapters": True}, "loads_adapters"),
        ({"kind": "worker", "url": "http://w", "sagemaker": SAGEMAKER}, "sagemaker"),
        ({"kind": "sagemaker"}, "sagemaker"),
        ({"kind": "sagemaker", "sagemaker": {**SAGEMAKER, "region": "moon"}}, "sagemaker.region"),
        ({"kind": "sagemaker", "sagemaker": {**SAGEMAKER, "endpoint": "a/b"}}, "sagemaker.endpoint"),
        ({"kind": "sagemaker", "sagemaker": {**SAGEMAKER, "component": "-a"}}, "sagemaker.component"),
        ({"kind": "sagemaker", "sagemaker": {**SAGEMAKER, "component": ""}}, "sagemaker.adapters"),
        ({"kind": "sagemaker", "sagemaker": {**SAGEMAKER, "adapters": "guess"}}, "sagemaker.adapters"),
        ({"kind": "sagemaker", "sagemaker": {**SAGEMAKER, "container": "jar"}}, "sagemaker.container"),
        ({"kind": "sagemaker", "sagemaker": {**SAGEMAKER, "container": "tgi"}}, "sagemaker.adapters"),
        (
            {
                "kind": "sagemaker",
                "sagemaker": {**SAGEMAKER, "adapters": "name", "container": "triton", "api": "openai"},
            },
            "sagemaker.api",
        ),
    ],
)
def test_what_a_kind_does_not_take_is_refused_by_name(
    staff: Client, base_model: BaseModel, fields: dict[str, Any], attr: str
) -> None:
    answer = register(staff, base_model, **fields)
    assert answer.status_code == 400, answer.content
    assert [error["attr"] for error in answer.json()["errors"]] == [attr]
    assert base_model.copies.count() == 0


def test_what_a_request_does_not_name_of_a_copys_credentials_stays(
    staff: Client, base_model: BaseModel
) -> None:
    server = {"kind": "openai_http", "url": "http://vllm:8000"}
    register(staff, base_model, **server, token="secret", headers={"x-a": "1"})
    for changes, expected in (
        ({"headers": {"x-b": "2"}}, ServerCredentials("secret", {"x-b": "2"})),
        ({"token": "next"}, ServerCredentials("next", {"x-b": "2"})),
        ({}, ServerCredentials("next", {"x-b": "2"})),
        ({"token": ""}, ServerCredentials("", {"x-b": "2"})),
    ):
        assert register(staff, base_model, **server, **changes).status_code == 201
        assert Copy.objects.get().credentials == expected
