"""Names that the shell completes."""

from __future__ import annotations

from itertools import islice

from graftwork.cli.session import client
from graftwork.errors import GraftworkError


def adapter_names(incomplete: str) -> list[str]:
    """Lists adapters with the typed prefix; none if the server does not answer."""
    try:
        with client() as found:
            rows = found.adapters.list(search=incomplete or None, page_size=50)
            return [row.name for row in islice(rows, 50) if row.name.startswith(incomplete)]
    except GraftworkError:
        return []
