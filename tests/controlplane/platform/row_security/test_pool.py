"""Pooled connections serve many requests: no request sees the scope of the one before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections

from controlplane.platform.row_security.scope import Scope, scoped

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="row policies are PostgreSQL's"),
]
_TOLD = "SELECT pg_backend_pid(), current_setting('graftwork.tenant', true)"


@pytest.fixture
def pooled() -> Iterator[Any]:
    """The backend's wrapper with one connection to hand round, which `close` gives back."""
    settings = copy.deepcopy(connection.settings_dict)
    settings["OPTIONS"] = dict(settings["OPTIONS"]) | {"pool": {"min_size": 1, "max_size": 1, "timeout": 5}}
    wrapper: Any = type(connections["default"])(settings, alias="pooled")
    connections["pooled"] = wrapper
    yield wrapper
    del connections["pooled"]
    wrapper.close()
    wrapper.close_pool()


def pid_and_tenant(wrapper: Any) -> tuple[int, str]:
    with wrapper.cursor() as cursor:
        cursor.execute(_TOLD)
        pid, tenant = cursor.fetchone()
    wrapper.close()
    return pid, tenant


def test_the_next_request_meets_its_own_scope_on_the_same_connection(pooled: Any) -> None:
    with scoped(Scope(tenant="acme")):
        first, tenant = pid_and_tenant(pooled)
    assert tenant == "acme"
    with scoped(Scope()):
        assert pid_and_tenant(pooled) == (first, "")
    assert pid_and_tenant(pooled)[0] == first


def test_a_request_that_broke_off_leaves_no_transaction(pooled: Any) -> None:
    with scoped(Scope(tenant="acme")):
        pooled.ensure_connection()
        pooled.set_autocommit(False)
        first, tenant = pid_and_tenant(pooled)
    assert tenant == "acme"
    with scoped(Scope()):
        assert pid_and_tenant(pooled) == (first, "")
    assert pooled.get_autocommit()


def test_a_request_that_reads_is_one_transaction_from_its_first_statement_on(pooled: Any) -> None:
    with scoped(Scope(tenant="acme")) as scope, pooled.one_transaction():
        assert not pooled.in_atomic_block
        begun = [tenant_and_start(pooled), tenant_and_start(pooled)]
        scope.tenant = "globex"
        pooled.state_scope()
        begun.append(tenant_and_start(pooled))
    assert not pooled.in_atomic_block
    assert [tenant for tenant, _ in begun] == ["acme", "acme", "globex"]
    assert len({at for _, at in begun}) == 1
    with scoped(Scope()):
        assert tenant_and_start(pooled)[1] > begun[0][1]


def tenant_and_start(wrapper: Any) -> tuple[str, Any]:
    """The tenant, and when the transaction began."""
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT current_setting('graftwork.tenant', true), transaction_timestamp()")
        tenant, at = cursor.fetchone()
    return tenant, at


def test_what_fails_while_it_is_read_leaves_no_transaction(pooled: Any) -> None:
    with scoped(Scope(tenant="acme")), pooled.one_transaction():
        tenant_and_start(pooled)
        with pooled.cursor() as cursor, pytest.raises(DatabaseError):
            cursor.execute("SELECT 1 / 0")
        with pytest.raises(DatabaseError):
            tenant_and_start(pooled)
    assert not pooled.in_atomic_block
    with scoped(Scope()):
        assert tenant_and_start(pooled)[0] == ""
