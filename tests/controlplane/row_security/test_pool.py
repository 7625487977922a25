"""Connections go from request to request: what one stated nobody after it meets."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from controlplane.row_security.scope import Scope, scoped

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


def told(wrapper: Any) -> tuple[int, str]:
    with wrapper.cursor() as cursor:
        cursor.execute(_TOLD)
        pid, tenant = cursor.fetchone()
    wrapper.close()
    return pid, tenant


def test_the_next_request_meets_its_own_scope_on_the_same_connection(pooled: Any) -> None:
    with scoped(Scope(tenant="acme")):
        first, tenant = told(pooled)
    assert tenant == "acme"
    with scoped(Scope()):
        assert told(pooled) == (first, "")
    assert told(pooled)[0] == first


def test_a_request_that_broke_off_leaves_no_transaction(pooled: Any) -> None:
    with scoped(Scope(tenant="acme")):
        pooled.ensure_connection()
        pooled.set_autocommit(False)
        first, tenant = told(pooled)
    assert tenant == "acme"
    with scoped(Scope()):
        assert told(pooled) == (first, "")
    assert pooled.get_autocommit()
