"""Links in e-mails: without a mail server, the demo's processes write e-mails to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from controlplane.platform.mailbox import mailbox_read


class MailLinks:
    """Finds links in e-mails that arrive in a folder.

    Args:
        mailbox: folder to which Django's file backend writes; it need not exist yet.
        web: base URL of the web UI, with which each link begins.
    """

    def __init__(self, mailbox: Path, *, web: str) -> None:
        self._mailbox, self._web = mailbox, f"{web}/"
        # E-mails of earlier starts were printed then.
        self._printed = {mail.id for mail in mailbox_read(mailbox)}
        self._sizes = self._files()

    def fresh(self) -> Iterator[tuple[str, str]]:
        """Yield recipient and link of each new e-mail since the last call, oldest first."""
        if (sizes := self._files()) == self._sizes:
            return
        self._sizes = sizes
        for mail in reversed(mailbox_read(self._mailbox)):
            if mail.id not in self._printed:
                self._printed.add(mail.id)
                for line in mail.text.splitlines():
                    if line.startswith(self._web) and " " not in line:
                        yield mail.recipient, line.strip()

    def _files(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self._mailbox.glob("*.log")}
