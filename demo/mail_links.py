"""Links of e-mails: the demo has no mail server, so its processes write e-mails to their logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


class MailLinks:
    """Finds the e-mails' links in logs that grow.

    Args:
        logs: of the processes that send e-mails.
        web: base URL of the web UI, with which each link begins.
    """

    def __init__(self, logs: Iterable[Path], *, web: str) -> None:
        self._offsets = dict.fromkeys(logs, 0)
        self._recipients: dict[Path, str] = {}
        self._web = f"{web}/"

    def fresh(self) -> Iterator[tuple[str, str]]:
        """Yields recipient and link of each line that was written since the last call."""
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
            # A line that is still being written is read whole next time.
            data = file.read().rpartition(b"\n")[0]
        if not data:
            return []
        self._offsets[log] += len(data) + 1
        return [line.strip() for line in data.decode(errors="replace").splitlines()]
