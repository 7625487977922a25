"""Links in e-mails: without a mail server, the demo's processes write e-mails to their logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


class MailLinks:
    """Finds e-mail links in growing logs.

    Args:
        logs: logs of the processes that send e-mails.
        web: base URL of the web UI, with which each link begins.
    """

    def __init__(self, logs: Iterable[Path], *, web: str) -> None:
        self._offsets = dict.fromkeys(logs, 0)
        self._recipients: dict[Path, str] = {}
        self._web = f"{web}/"

    def fresh(self) -> Iterator[tuple[str, str]]:
        """Yield recipient and link of each new link since the last call."""
        for log in self._offsets:
            for line in self._lines(log):
                if line.startswith("To: "):
                    self._recipients[log] = line[4:]
                elif line.startswith(self._web) and " " not in line:
                    yield self._recipients.get(log, ""), line

    def _lines(self, log: Path) -> list[str]:
        if not log.exists():
            return []
        with log.open("rb") as file:
            file.seek(self._offsets[log])
            # An incomplete last line is read again next time.
            data = file.read().rpartition(b"\n")[0]
        if not data:
            return []
        self._offsets[log] += len(data) + 1
        return [line.strip() for line in data.decode(errors="replace").splitlines()]
