"""The row scope: whose rows the current request may access, enforced by the database's row policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from django.db import connections

EVERYTHING: Final = "*"
"""Tenant value for every tenant's rows, for staff."""


@dataclass(slots=True)
class Scope:
    """Rows that a request may access. An empty scope, before the caller is known, has no tenant's rows.

    Attributes:
        tenant: id of the tenant whose rows are accessible; EVERYTHING for all.
        user: id of the user whose memberships and tenants are accessible.
        key: public id of the accessible API key.
    """

    tenant: str = ""
    user: str = ""
    key: str = ""


_current: ContextVar[Scope | None] = ContextVar("row_scope", default=None)


def current_scope() -> Scope | None:
    """Return the request's scope; None outside of requests, where the database role owns the tables."""
    return _current.get()


@contextmanager
def scoped(scope: Scope) -> Iterator[Scope]:
    """Apply `scope` to the database queries inside the block."""
    token = _current.set(scope)
    try:
        _state()
        yield scope
    finally:
        _current.reset(token)
        _state()


def scope_set(*, tenant: str | None = None, user: str | None = None, key: str | None = None) -> None:
    """Extend the request's scope once the caller is authenticated; no-op outside of a request."""
    scope = _current.get()
    if scope is None:
        return
    # Changed in place, so that other threads of this request see it too.
    scope.tenant = scope.tenant if tenant is None else tenant
    scope.user = scope.user if user is None else user
    scope.key = scope.key if key is None else key
    _state()


@contextmanager
def every_row() -> Iterator[None]:
    """Allow all rows inside the block; for writes of a request that belong to no tenant, such as sign-up."""
    if _current.get() is None:
        yield
        return
    with scoped(Scope(tenant=EVERYTHING)):
        yield


def _state() -> None:
    """Set the scope in open transactions; later transactions set it when they begin."""
    for connection in connections.all(initialized_only=True):
        if hasattr(connection, "state_scope") and connection.in_atomic_block:
            connection.state_scope()
