"""Whose rows this request may meet. The database holds it to that, under Django's own filters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from django.db import connections

EVERYTHING: Final = "*"
"""As a tenant: every tenant's rows, for staff."""


@dataclass(slots=True)
class Scope:
    """Empty until the caller is known: then it meets no tenant's rows.

    Attributes:
        tenant: its rows; EVERYTHING for all.
        user: the memberships of this user, and their tenants.
        key: the API key of this public id.
    """

    tenant: str = ""
    user: str = ""
    key: str = ""


_current: ContextVar[Scope | None] = ContextVar("row_scope", default=None)


def current_scope() -> Scope | None:
    """The request's; None in processes that answer no requests, whose database role owns the tables."""
    return _current.get()


@contextmanager
def scoped(scope: Scope) -> Iterator[Scope]:
    """What is asked of the database inside meets the rows of `scope`."""
    token = _current.set(scope)
    try:
        _state()
        yield scope
    finally:
        _current.reset(token)
        _state()


def scope_set(*, tenant: str | None = None, user: str | None = None, key: str | None = None) -> None:
    """Says more of whose rows this request may meet, once that is proven; nothing outside of a request."""
    scope = _current.get()
    if scope is None:
        return
    # The object is changed, not replaced: what runs in other threads for this request sees it too.
    scope.tenant = scope.tenant if tenant is None else tenant
    scope.user = scope.user if user is None else user
    scope.key = scope.key if key is None else key
    _state()


@contextmanager
def every_row() -> Iterator[None]:
    """For the few writes of a request that belong to no tenant, such as making an account."""
    if _current.get() is None:
        yield
        return
    with scoped(Scope(tenant=EVERYTHING)):
        yield


def _state() -> None:
    """Tells it to transactions that are open; those to come are told as they begin."""
    for connection in connections.all(initialized_only=True):
        if hasattr(connection, "state_scope") and connection.in_atomic_block:
            connection.state_scope()
