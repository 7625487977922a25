"""Sends one message to one recipient by SMTP, and classifies refusals."""

from __future__ import annotations

import contextlib
import logging
from enum import Enum, auto
from smtplib import SMTPDataError, SMTPException, SMTPNotSupportedError, SMTPRecipientsRefused
from types import TracebackType
from typing import Final, Self

from django.core.mail import EmailMessage, get_connection

logger = logging.getLogger(__name__)

_PERMANENT: Final = 500
"""SMTP reply codes from here on are permanent failures (RFC 5321, 4.2.1)."""


class MailServerAwayError(Exception):
    """The server is unreachable or accepts no mail from us, so other messages would fail too."""


class Outcome(Enum):
    """Result of sending a message."""

    SENT = auto()
    REFUSED = auto()
    """Permanent refusal: do not send the message again."""
    LATER = auto()
    """Temporary refusal, such as greylisting or a full mailbox; other messages can be sent."""


class MailServer:
    """A connection to `EMAIL_HOST`, opened by the first message and closed at the end of the block.

    MailServerAwayError ends the block and is logged; the remaining messages wait for the next run.
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
            logger.warning("%s; delivery will be retried", error)
            return True
        return False

    def send(self, message: EmailMessage) -> Outcome:
        """Send a message with exactly one recipient.

        Raises:
            MailServerAwayError: the server is away; also if it took the message but its reply was lost.
        """
        try:
            self._connection.open()
            self._connection.send_messages([message])
        except SMTPRecipientsRefused as error:
            # The refusals are keyed by recipient, and there is one.
            return self._refused(message, *next(iter(error.recipients.values())))
        except SMTPDataError as error:
            return self._refused(message, error.smtp_code, error.smtp_error)
        except (SMTPNotSupportedError, ValueError) as error:
            # An address that this server, or SMTP, cannot express.
            logger.warning("cannot send to %s: %s", message.to[0], error)
            return Outcome.REFUSED
        except (OSError, SMTPException) as error:
            raise MailServerAwayError(
                f"the mail server is unavailable: {str(error) or type(error).__name__}"
            ) from error
        return Outcome.SENT

    def _refused(self, message: EmailMessage, code: int, answer: bytes | str) -> Outcome:
        logger.warning("the mail server refused the message to %s: %s %r", message.to[0], code, answer)
        return Outcome.REFUSED if code >= _PERMANENT else Outcome.LATER
