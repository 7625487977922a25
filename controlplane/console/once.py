"""A form that books money: sent twice, it is booked once."""

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
    """Calls `book` in a transaction, unless the same form was booked before: its `once` tells.

    Args:
        what: names the kind of form, and `parts` what it says.

    Raises:
        InvalidInputError: the form has no `once`.
        ConflictError: `once` stood for something else, or the same form is under way.
    """
    once = request.POST.get("once", "")
    if not 16 <= len(once) <= 64:
        raise InvalidInputError(_("open the page anew, and enter it once more"), field="once")
    asked = fingerprint(part.encode() for part in parts)
    # No header can have a blank in its key: pages' keys are none of REST's.
    claim = claim_take(scope=f"user:{request.user.pk}", key=f"{what} {once}", fingerprint=asked, lease=_LEASE)
    if isinstance(claim, Answer):
        return
    try:
        with transaction.atomic():
            book()
            if not answer_keep(claim=claim, answer=Answer(302, None, {})):
                raise ConflictError(_("this took so long that the same form, sent again, took over"))
    except BaseException:
        claim_release(claim=claim)
        raise
