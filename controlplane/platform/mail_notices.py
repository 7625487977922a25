"""Sends the mail of a notice to each of its recipients, at least once, with retries over nearly three days.

A notice is a row with `notify_at` (when its mail is due; null for none), `notify_attempts`, and `notified`
(ids of users who have received it, or whose mail server refuses it for good).
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from django.core.mail import EmailMessage
from django.db.models import F, Model, Q, QuerySet
from django.utils import timezone

from controlplane.platform.mail_server import MailServer, Outcome

logger = logging.getLogger(__name__)
Row = TypeVar("Row", bound=Model)

RETRY_AFTER: Final = dt.timedelta(minutes=2)
"""Delay before an attempt is retried; it doubles with each attempt."""
ATTEMPTS: Final = 12
"""Attempts before giving up. Where a message is taken and the answer lost, each attempt repeats it."""
_MOST_DUE: Final = 1000


def notice_mail_send(
    *,
    rows: QuerySet[Row],
    server: MailServer,
    messages: Callable[[Row, list[int]], Iterable[tuple[int, EmailMessage]]],
    still: Callable[[Row], Q] = lambda _: Q(),
) -> bool:
    """Send the mail of the only row of `rows` if it is due; return True when no recipient remains.

    Each recipient is recorded after the message, so an attempt that fails at one repeats nothing to the
    others. The periodic task retries the remaining recipients. Returns False also when it is not due.

    Args:
        messages: by user id, for those who are not in the list of ids. One message each, so that nobody sees
            other addresses.
        still: condition under which the row still waits for this mail.

    Raises:
        MailServerAwayError: nothing can be sent at present.
    """
    now = timezone.now()
    claimed = rows.filter(notify_at__lte=now)
    if not claimed.update(notify_at=now + RETRY_AFTER, notify_attempts=F("notify_attempts") + 1):
        return False
    row: Any = rows.get()
    same, is_last = rows.filter(still(row)), row.notify_attempts >= ATTEMPTS
    same.update(notify_at=None if is_last else now + RETRY_AFTER * 2 ** (row.notify_attempts - 1))
    notified, remaining = list(row.notified or []), 0
    for user_id, message in messages(row, list(notified)):
        if server.send(message) is Outcome.LATER:
            remaining += 1
            continue
        notified.append(user_id)
        same.update(notified=notified)
    if remaining:
        logger.warning("%d recipients still await the mail about %s", remaining, row)
        return False
    same.update(notify_at=None)
    return True


def notices_due(rows: QuerySet[Any]) -> list[Any]:
    """List the keys of the rows whose mail is due, oldest first; at most 1,000."""
    due = rows.filter(notify_at__lte=timezone.now())
    return list(due.order_by("notify_at").values_list("pk", flat=True)[:_MOST_DUE])
