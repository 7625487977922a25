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

from controlplane.errors import ConflictError, ControlPlaneError

FIELD: Final = "seen"
"""The hidden input's name."""
Shown = Mapping[str, str]


class ChangedMeanwhileError(ConflictError):
    """What the form replaces was changed; the text tells what is in force, and `seen` is that state's tag."""

    def __init__(self, message: str, *, seen: str) -> None:
        super().__init__(message)
        self.seen = seen


def seen_tag(shown: Shown) -> str:
    """The tag of a state, as the form shows it."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def seen_again(request: HttpRequest, error: ControlPlaneError) -> str:
    """The tag for a form that is refused and shown again.

    Only who was told what is in force gets its tag. After any other refusal the one that was sent stays: a
    newer one would let the next try replace what its sender never saw.
    """
    return error.seen if isinstance(error, ChangedMeanwhileError) else request.POST.get(FIELD, "")


@contextmanager
def unchanged(request: HttpRequest, *, row: models.Model, shown: Callable[[], Shown]) -> Iterator[None]:
    """A transaction in which what the form replaces is still what its page showed.

    What was entered is read inside: a typing mistake hides no change of somebody else's.

    Args:
        row: whose lock orders changes of it, as the REST API's `row_to_lock`.
        shown: reads the state in force.

    Raises:
        ChangedMeanwhileError: it was changed meanwhile; the text has what is in force.
    """
    with transaction.atomic():
        # Whoever holds the route counter may add rows that refer to this one, for which PostgreSQL shares
        # its key. A lock of the key as well would wait for them, and they for us, who need the counter next.
        rows = type(row)._base_manager.select_for_update(no_key=True, of=("self",))
        list(rows.filter(pk=row.pk).values_list("pk"))
        now = shown()
        if request.POST.get(FIELD) != seen_tag(now):
            told = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in now.items() if value)
            text = _("This was changed since you opened the page. In force now: %(now)s. Save to replace it.")
            raise ChangedMeanwhileError(text % {"now": told or _("nothing")}, seen=seen_tag(now))
        yield
