"""A request's scope: empty at first, gone at its end, there still while a download is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from controlplane.platform.row_security.middleware import RowScopeMiddleware
from controlplane.platform.row_security.scope import current_scope, scope_set
from controlplane.tenants.models import User

pytestmark = pytest.mark.django_db


def current_tenant() -> bytes:
    scope = current_scope()
    return b"none" if scope is None else scope.tenant.encode()


def answer(
    request: HttpRequest | None = None, *, body: Iterator[bytes] | AsyncIterator[bytes] | None = None
) -> HttpResponseBase:
    def view(request: HttpRequest) -> HttpResponseBase:
        before = current_tenant()
        scope_set(tenant="acme")
        return HttpResponse(before) if body is None else StreamingHttpResponse(body)

    return RowScopeMiddleware(view)(request or HttpRequest())


def test_a_request_begins_with_no_ones_rows_and_leaves_nothing() -> None:
    response = answer()
    assert isinstance(response, HttpResponse)
    assert response.content == b""
    assert current_tenant() == b"none"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL is told of a scope")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("method", "transactions"), [("GET", 1), ("HEAD", 1), ("POST", 2)])
def test_what_a_get_reads_is_one_transaction(method: str, transactions: int) -> None:
    begun = set()

    def view(request: HttpRequest) -> HttpResponseBase:
        for _ in range(2):
            with connection.cursor() as cursor:
                cursor.execute("SELECT transaction_timestamp()")
                begun.update(cursor.fetchone())
        return HttpResponse()

    request = HttpRequest()
    request.method = method
    RowScopeMiddleware(view)(request)
    assert len(begun) == transactions
    assert not connection.in_atomic_block


def test_staff_pages_meet_everything() -> None:
    request = HttpRequest()
    request.path_info, request.user = "/admin/tenants/", User(is_staff=True)
    response = answer(request)
    assert isinstance(response, HttpResponse)
    assert response.content == b"*"
    request.user = User(is_staff=False)
    response = answer(request)
    assert isinstance(response, HttpResponse)
    assert response.content == b""


def test_a_download_keeps_its_scope_while_it_is_sent() -> None:
    def pieces() -> Iterator[bytes]:
        yield current_tenant()
        yield current_tenant()

    response = answer(body=pieces())
    assert isinstance(response, StreamingHttpResponse)
    assert list(response) == [b"acme", b"acme"]
    assert current_tenant() == b"none"


def test_so_does_one_under_asgi() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield current_tenant()
        yield current_tenant()

    async def read() -> list[bytes]:
        response = answer(body=pieces())
        assert isinstance(response, StreamingHttpResponse)
        return [piece async for piece in response]

    assert asyncio.run(read()) == [b"acme", b"acme"]
    assert current_tenant() == b"none"
