"""Commits an account's change and its audit record in one transaction, which begins as late as possible.

allauth begins a transaction only for factors. One around the whole request would hold SQLite's only write
lock for pages that write nothing, while passwords are hashed, mail is sent and the identity provider is
called. So the first change begins it, when the account is known.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from django.db import transaction
from django.http import HttpRequest, HttpResponse

_ACCOUNTS: Final = "/accounts/"


@dataclass(slots=True)
class _Pending:
    """The current request's transaction; `depth` is the number of atomic blocks around it."""

    depth: int
    stack: ExitStack = field(default_factory=ExitStack)
    has_begun: bool = False


_current: ContextVar[_Pending | None] = ContextVar("account_transaction", default=None)


class AccountTransaction:
    """Commits the transaction of `transaction_begin`, or rolls it back for an answer of 500 or more."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path_info.startswith(_ACCOUNTS):
            return self._get_response(request)
        pending = _Pending(_depth())
        with pending.stack:
            token = _current.set(pending)
            try:
                response = self._get_response(request)
            finally:
                _current.reset(token)
            if pending.has_begun and response.status_code >= 500:
                transaction.set_rollback(True)
        return response


def transaction_begin() -> None:
    """Start the request's transaction, on account pages only.

    Inside an atomic block it does nothing, because that block commits changes and records together.
    """
    pending = _current.get()
    if pending is None or pending.has_begun or _depth() != pending.depth:
        return
    pending.has_begun = True
    pending.stack.enter_context(transaction.atomic())


def _depth() -> int:
    return len(transaction.get_connection().atomic_blocks)
