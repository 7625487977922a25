"""Optimistic locking of forms: each form carries the state that it was filled in from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest
from django.utils.translation import gettext as _

from controlplane.errors import ConflictError, ControlPlaneError
from controlplane.platform.row_lock import row_lock

FIELD: Final = "seen"
"""Name of the hidden input."""
Shown = Mapping[str, str]


class ChangedMeanwhileError(ConflictError):
    """The state was changed meanwhile; the text has the current state, and `seen` its tag."""

    def __init__(self, message: str, *, seen: str) -> None:
        super().__init__(message)
        self.seen = seen


def seen_tag(shown: Shown) -> str:
    """Return the tag of a state, as the form shows it."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def seen_again(request: HttpRequest, error: ControlPlaneError) -> str:
    """Return the tag for a refused form that is shown again.

    Only a user who saw the current state gets its tag. After any other refusal the submitted tag stays: a
    newer one would let the next try replace a state that the user never saw.
    """
    return error.seen if isinstance(error, ChangedMeanwhileError) else request.POST.get(FIELD, "")


@contextmanager
def unchanged(request: HttpRequest, *, row: Model, shown: Callable[[], Shown]) -> Iterator[None]:
    """Run the block in a transaction in which the state is still the one that the form's page showed.

    Parse the input inside the block, so that a typing mistake does not hide another user's change.

    Args:
        row: the row whose lock orders changes, like the REST API's `row_to_lock`.
        shown: reads the current state.

    Raises:
        ChangedMeanwhileError: the state was changed meanwhile; the text has the current state.
    """
    with transaction.atomic():
        row_lock(row)
        now = shown()
        if request.POST.get(FIELD) != seen_tag(now):
            state = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in now.items() if value)
            text = _(
                "This was changed since you opened the page. Current value: %(now)s. Save to replace it."
            )
            raise ChangedMeanwhileError(text % {"now": state or _("nothing")}, seen=seen_tag(now))
        yield
