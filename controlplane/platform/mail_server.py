"""One message to one recipient at a mail server, which may refuse it, ask for patience, or be away."""

from __future__ import annotations

import contextlib
import logging
from enum import Enum, auto
from smtplib import SMTPDataError, SMTPException, SMTPNotSupportedError, SMTPRecipientsRefused
from types import TracebackType
from typing import Final, Self

from django.core.mail import EmailMessage, get_connection

logger = logging.getLogger(__name__)

_FOR_GOOD: Final = 500
"""SMTP's replies from here on say that the same message will never be taken (RFC 5321, 4.2.1)."""


class MailServerAwayError(Exception):
    """It cannot be reached, or takes no mail of ours: the next message would fare no better."""


class Outcome(Enum):
    """What became of a message."""

    SENT = auto()
    REFUSED = auto()
    """For good: it is useless to send it again."""
    LATER = auto()
    """Greylisting, a full mailbox: another time perhaps, and meanwhile others' messages can go."""


class MailServer:
    """A connection to `EMAIL_HOST`, opened by the first message and closed by the end of the block.

    MailServerAwayError ends the block and is logged: what remains waits for the next round.
    """

    def __init__(self) -> None:
        self._connection = get_connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        with contextlib.suppress(OSError):
            self._connection.close()
        if isinstance(error, MailServerAwayError):
            logger.warning("%s, will try again", error)
            return True
        return False

    def send(self, message: EmailMessage) -> Outcome:
        """Sends a message that has one recipient.

        Raises:
            MailServerAwayError: also where only the answer was lost, and the message was taken.
        """
        try:
            self._connection.open()
            self._connection.send_messages([message])
        except SMTPRecipientsRefused as error:
            # By recipient; there is one.
            return self._refused(message, *next(iter(error.recipients.values())))
        except SMTPDataError as error:
            return self._refused(message, error.smtp_code, error.smtp_error)
        except (SMTPNotSupportedError, ValueError) as error:
            # An address that this server, or SMTP, cannot express.
            logger.warning("cannot write to %s: %s", message.to[0], error)
            return Outcome.REFUSED
        except (OSError, SMTPException) as error:
            raise MailServerAwayError(
                f"the mail server is away: {str(error) or type(error).__name__}"
            ) from error
        return Outcome.SENT

    def _refused(self, message: EmailMessage, code: int, answer: bytes | str) -> Outcome:
        logger.warning("the mail server refuses the message to %s: %s %r", message.to[0], code, answer)
        return Outcome.REFUSED if code >= _FOR_GOOD else Outcome.LATER
