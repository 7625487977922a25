"""Locks of single rows."""

from __future__ import annotations

from django.db.models import Model


def row_lock(row: Model) -> None:
    """Lock the row until the transaction ends.

    The row's key stays unlocked: a transaction that holds the route counter may insert rows that refer to
    this one. The caller usually locks the counter next, so a lock of the key would deadlock.
    """
    rows = type(row)._base_manager.select_for_update(no_key=True, of=("self",))
    list(rows.filter(pk=row.pk).values_list("pk"))
