"""The whole REST API against its own OpenAPI document: no 5xx, and no answer that it does not state.

Every test process collects this module, so it loads schemathesis and makes the document when a test runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pytest_django.plugin import DjangoDbBlocker

from controlplane import api_urls
from controlplane.tenants.models import Membership, ServiceAccount, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create
from tests.controlplane.world import OWN, World, world_make

CSRF = "c" * 32
METHODS = ("get", "post", "put", "patch", "delete")


class LoggedIn:
    """The control plane as one caller sees it, whatever credentials a request makes up."""

    cookies: ClassVar[dict[str, str]] = {}
    keys: ClassVar[dict[str, str]] = {}
    """Paths that no session opens -> the API key that does."""

    def __init__(self) -> None:
        self._handler = WSGIHandler()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        for name in ("HTTP_AUTHORIZATION", "HTTP_ACCEPT_ENCODING"):
            environ.pop(name, None)
        if key := self.keys.get(environ["PATH_INFO"]):
            environ["HTTP_AUTHORIZATION"] = f"Bearer {key}"
        environ["HTTP_COOKIE"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        environ["HTTP_X_CSRFTOKEN"] = CSRF
        return self._handler(environ, start_response)


def operation_names() -> list[str]:
    """Method and path of each REST operation, by the routes."""
    names = []
    for pattern in api_urls.urlpatterns:
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", f"/api/v1/{pattern.pattern}")
        api = cast(Any, pattern.callback).view_class
        names += [f"{method.upper()} {path}" for method in METHODS if hasattr(api, method)]
    return names


@functools.cache
def operations() -> dict[str, Any]:
    """Every operation of the document, as it is served."""
    import schemathesis

    # Parts of uploads are bytes like any.
    schemathesis.serializer.alias("application/offset+octet-stream", "application/octet-stream")
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", LoggedIn())
    found: list[Any] = [result.ok() for result in cast(Any, schema.get_all_operations())]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


@pytest.fixture(scope="module")
def world(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with django_db_blocker.unblock(), transaction.atomic():
        made = world_make(tmp_path_factory.mktemp("world"))
        # One who may do everything, so that requests get past the door.
        staff = User.objects.get(is_staff=True)
        Membership.objects.create(user=staff, tenant=Tenant.objects.get(pk=OWN), role=Role.OWNER)
        session = {name: morsel.value for name, morsel in made.staff.cookies.items()}
        fleet = ServiceAccount.objects.get(name="fleet")
        _, key = api_key_create(tenant=fleet.tenant, name="k", scopes=["usage:write"], service_account=fleet)
        LoggedIn.keys = {"/api/v1/usage/events": key}
        LoggedIn.cookies = {**session, "graftwork_csrf": CSRF}
        yield made
        transaction.set_rollback(True)


@pytest.fixture
def one_connection(db: None) -> Iterator[None]:
    """Keeps the test's connection, which a handler would close between requests."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.parametrize("name", operation_names())
@pytest.mark.costly("its first call loads what the API needs")
def test_answers_are_as_the_document_says(name: str, world: World, one_connection: None) -> None:
    statuses = send(operations()[name], world, requests=2)
    # The door is open to this caller, so it is the route itself that answers.
    assert not statuses & {401, 403, 429}


@pytest.mark.slow
@pytest.mark.parametrize("name", operation_names())
def test_many_answers_are_as_the_document_says(name: str, world: World, one_connection: None) -> None:
    send(operations()[name], world, requests=12)


def send(operation: Any, world: World, *, requests: int) -> set[int]:
    """Send valid and invalid requests of the operation, some of them about existing objects."""
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    conformance = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    statuses = set()
    cases = st.one_of(
        operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE),
    )

    @seed(1)
    @settings(
        max_examples=requests,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, known=st.booleans())
    def call(case: Any, known: bool) -> None:
        if known:
            names = case.path_parameters or {}
            case.path_parameters = {name: world.values.get(name, value) for name, value in names.items()}
        with transaction.atomic():
            response = case.call()
            transaction.set_rollback(True)
        statuses.add(response.status_code)
        # 503 says that a retry helps, as for a PDF that is still being rendered.
        failures = [] if response.status_code == 503 else [not_a_server_error]
        case.validate_response(response, checks=[*failures, *conformance])

    call()
    return statuses


@pytest.mark.costly("makes the document")
def test_the_document_has_every_route(one_connection: None) -> None:
    assert set(operations()) == set(operation_names())


def test_the_document_is_openapi_3_1_and_valid() -> None:
    import schemathesis

    answer = Client().get("/api/v1/openapi.json")
    assert answer["Content-Type"].startswith("application/vnd.oai.openapi+json")
    document = answer.json()
    assert document["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(document).validate()
    create = document["paths"]["/api/v1/keys"]["post"]
    assert "Idempotency-Key" in {parameter["name"] for parameter in create["parameters"]}
    change = document["paths"]["/api/v1/keys/{public_id}/limits"]["put"]
    assert {"412", "428", "429"} <= set(change["responses"])
    (condition,) = [given for given in change["parameters"] if given["name"] == "If-Match"]
    assert condition["required"]
