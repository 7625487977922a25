"""Forms that book money: a form that is sent twice is booked once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Final

from django.db import transaction
from django.http import HttpRequest
from django.utils.translation import gettext as _

from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.idempotency.sealing import fingerprint
from controlplane.platform.idempotency.services import Answer, answer_keep, claim_release, claim_take

_LEASE: Final = dt.timedelta(seconds=60)


def booked_once(request: HttpRequest, *, what: str, parts: Iterable[str], book: Callable[[], object]) -> None:
    """Call `book` in a transaction, unless a form with the same `once` value was booked before.

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
    asked = fingerprint(part.encode() for part in parts)
    # Keys of pages contain a blank, which no header's key can, so they never collide with the REST API's.
    claim = claim_take(scope=f"user:{request.user.pk}", key=f"{what} {once}", fingerprint=asked, lease=_LEASE)
    if isinstance(claim, Answer):
        return
    try:
        with transaction.atomic():
            book()
            if not answer_keep(claim=claim, answer=Answer(302, None, {})):
                raise ConflictError(_("the same form was submitted again and replaced this one"))
    except BaseException:
        claim_release(claim=claim)
        raise
