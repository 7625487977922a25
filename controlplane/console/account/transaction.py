"""A change of an account and its record in the audit log are one transaction, which begins as late as it can.

allauth by itself begins one for factors alone. One around the whole request would hold SQLite's only write
lock, which every atomic block there takes at its start, for pages that only show something, while passwords
are hashed, mail is sent and the identity provider is asked. So the first change begins it: who is to log in
is known by then.
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
    """The transaction of the request that is answered; `depth`: how many atomic blocks are around it."""

    depth: int
    stack: ExitStack = field(default_factory=ExitStack)
    has_begun: bool = False


_current: ContextVar[_Pending | None] = ContextVar("account_transaction", default=None)


class AccountTransaction:
    """Ends what `transaction_begin` began: commits, or takes back what led to an answer of 500 or more."""

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
    """From here to the end of the request all is one transaction; elsewhere than in account pages nothing.

    Inside an atomic block, whose changes and records are one already, nothing either.
    """
    pending = _current.get()
    if pending is None or pending.has_begun or _depth() != pending.depth:
        return
    pending.has_begun = True
    pending.stack.enter_context(transaction.atomic())


def _depth() -> int:
    return len(transaction.get_connection().atomic_blocks)
