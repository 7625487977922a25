"""Forms that book money: a form that is sent twice is booked once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from django.db import transaction
from django.http import HttpRequest
from django.utils.translation import gettext as _

from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.idempotency.sealing import fingerprint
from controlplane.platform.idempotency.services import Answer, answer_keep, claimed

_LEASE: Final = dt.timedelta(seconds=60)


@contextmanager
def booked_once(request: HttpRequest, *, what: str, parts: Iterable[str]) -> Iterator[bool]:
    """Run the block, which books a form, in a transaction.

    The block gets True, or False if a form with the same `once` value was booked before and it must book
    nothing.

    Args:
        what: the kind of form.
        parts: the form's contents.

    Raises:
        InvalidInputError: the form has no `once`.
        ConflictError: `once` belongs to other contents, or the same form is being booked.
    """
    once = request.POST.get("once", "")
    if not 16 <= len(once) <= 64:
        raise InvalidInputError(_("reload the page and enter it again"), field="once")
    identity = fingerprint(part.encode() for part in parts)
    # Keys of pages contain a blank, which no header's key can, so they never collide with the REST API's.
    key = f"{what} {once}"
    with claimed(scope=f"user:{request.user.pk}", key=key, fingerprint=identity, lease=_LEASE) as claim:
        if isinstance(claim, Answer):
            yield False
            return
        with transaction.atomic():
            yield True
            if not answer_keep(claim=claim, answer=Answer(302, None, {})):
                raise ConflictError(_("the same form was submitted again and replaced this one"))
