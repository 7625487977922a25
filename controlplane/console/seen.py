"""Forms that replace what others may have changed: each carries the state that it was filled in from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from django.db import models, transaction
from django.http import HttpRequest
from django.utils.translation import gettext as _

from controlplane.errors import ConflictError

FIELD: Final = "seen"
"""The hidden input's name."""
Shown = Mapping[str, str]


def seen_tag(shown: Shown) -> str:
    """The tag of a state, as the form shows it."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


@contextmanager
def unchanged(request: HttpRequest, *, row: models.Model, shown: Callable[[], Shown]) -> Iterator[None]:
    """A transaction in which what the form replaces is still what its page showed.

    Args:
        row: whose lock orders changes of it, as the REST API's `row_to_lock`.
        shown: reads the state in force.

    Raises:
        ConflictError: it was changed meanwhile; the text has what is in force.
    """
    with transaction.atomic():
        list(type(row)._base_manager.select_for_update(of=("self",)).filter(pk=row.pk).values_list("pk"))
        now = shown()
        if request.POST.get(FIELD) != seen_tag(now):
            told = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in now.items() if value)
            text = _("This was changed since you opened the page. In force now: %(now)s. Save to replace it.")
            raise ConflictError(text % {"now": told or _("nothing")})
        yield
