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
"""Equivalent of SET LOCAL, which takes no parameters: the values end with the transaction.

JIT is off because the planner overestimates the cost of the policies' subqueries and compiles their filters:
a count of 20,000 versions took 170 ms, 64 of them in the compiler.
"""


class DatabaseWrapper(base.DatabaseWrapper):
    """Connection that sets the row scope, which the policies of the migrations read."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reading: ExitStack | None = None
        self.execute_wrappers.append(self._in_transaction)

    def _set_autocommit(self, autocommit: bool) -> None:
        super()._set_autocommit(autocommit)  # type: ignore[misc]  # the stubs leave it out
        if not autocommit and current_scope() is not None:
            self.state_scope()

    def state_scope(self) -> None:
        """Set the scope in the open transaction; begin one if needed."""
        scope = current_scope() or Scope()
        if self.connection is not None and not self.needs_rollback:
            self.connection.execute(_STATE, (scope.tenant, scope.user, scope.key))

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """Run the statements inside in one transaction, which the first begins; for read-only requests.

        A transaction per statement takes four round trips instead of one: a page's 27 statements became 81,
        besides 27 BEGINs and COMMITs.
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
        """Run a statement outside a transaction in its own one, so that its scope can be set."""
        if current_scope() is None or self.in_atomic_block or not self.get_autocommit():
            return execute(sql, params, many, context)
        if self._reading is not None:
            self._reading.enter_context(transaction.atomic(using=self.alias))
            return execute(sql, params, many, context)
        with transaction.atomic(using=self.alias):
            return execute(sql, params, many, context)
