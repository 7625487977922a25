"""Reads e-mails that Django's file backend wrote to a folder."""

from __future__ import annotations

import email
import email.policy
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import datetime as dt

_END: Final = b"\n" + b"-" * 79 + b"\n"
"""The backend writes it after each e-mail, several of which may be in one file."""


@dataclass(frozen=True, slots=True)
class Mail:
    """An e-mail as it was sent. `id` is its Message-ID."""

    id: str
    recipient: str
    subject: str
    text: str
    sent_at: dt.datetime | None


def mailbox_read(folder: Path, *, most: int | None = None) -> list[Mail]:
    """Return the complete e-mails in the folder, newest first.

    Args:
        most: reads only the newest files that hold this many; None reads all.
    """
    found: list[Mail] = []
    for path in sorted(folder.glob("*.log"), reverse=True):
        if most is not None and len(found) >= most:
            break
        # The part after the last mark is empty, or is still being written.
        *parts, _ = path.read_bytes().split(_END)
        found += [_parsed(part) for part in reversed(parts)]
    return found[:most]


def _parsed(data: bytes) -> Mail:
    message = email.message_from_bytes(data, policy=email.policy.default)
    body = message.get_body(("plain",))
    try:
        sent_at = parsedate_to_datetime(str(message["Date"]))
    except ValueError:
        sent_at = None
    return Mail(
        id=str(message["Message-ID"]),
        recipient=str(message["To"]),
        subject=str(message["Subject"]),
        text="" if body is None else body.get_content(),
        sent_at=sent_at,
    )
