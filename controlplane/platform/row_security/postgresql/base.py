"""Django's PostgreSQL backend, which states the request's scope at the beginning of each transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from django.db import transaction
from django.db.backends.postgresql import base

from controlplane.platform.row_security.scope import Scope, current_scope

_STATE: Final = (
    "SELECT set_config('graftwork.tenant', %s, true), set_config('graftwork.user', %s, true),"
    " set_config('graftwork.key', %s, true), set_config('jit', 'off', true)"
)
"""SET LOCAL, which takes no parameters: it ends with the transaction, whoever has the connection next.

The policies' subqueries look so dear to the planner that it compiles what they filter: of 170 ms that
counting 20,000 versions took, 64 were the compiler's.
"""


class DatabaseWrapper(base.DatabaseWrapper):
    """The policies of `migrations` read what is stated here."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reading: ExitStack | None = None
        self.execute_wrappers.append(self._in_transaction)

    def _set_autocommit(self, autocommit: bool) -> None:
        super()._set_autocommit(autocommit)  # type: ignore[misc]  # the stubs leave it out
        if not autocommit and current_scope() is not None:
            self.state_scope()

    def state_scope(self) -> None:
        """States it in the transaction that is open; it begins one if need be."""
        scope = current_scope() or Scope()
        if self.connection is not None and not self.needs_rollback:
            self.connection.execute(_STATE, (scope.tenant, scope.user, scope.key))

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """Statements inside share the transaction that the first of them begins, for requests that only read.

        A transaction for each statement is four ways to the server instead of one: a page's 27 statements
        made 81, and 27 beginnings and ends beside them.
        """
        with ExitStack() as stack:
            self._reading = stack
            try:
                yield
            finally:
                self._reading = None

    def _in_transaction(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        """A statement outside of any transaction gets one of its own, where its scope can be stated."""
        if current_scope() is None or self.in_atomic_block or not self.get_autocommit():
            return execute(sql, params, many, context)
        if self._reading is not None:
            self._reading.enter_context(transaction.atomic(using=self.alias))
            return execute(sql, params, many, context)
        with transaction.atomic(using=self.alias):
            return execute(sql, params, many, context)
