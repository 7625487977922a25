"""Copies with faults on demand, and a gateway in front of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, free_port, stop
from tests.gateway.conftest import wait_for


@dataclass(slots=True)
class StandIn:
    """One copy's process."""

    log: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.gateway.routing.standin", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        wait_for(self._answers)

    def kill(self) -> None:
        """From now on nobody listens there."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)

    def behave(self, **behaviour: Any) -> None:
        httpx.post(self.url + "/behave", json=behaviour).raise_for_status()

    def calls(self) -> int:
        """Calls of completions since `behave`."""
        return len(httpx.get(self.url + "/calls").json())

    def wait_heard(self) -> None:
        """Until the gateway has heard what `GET /load` says since `behave`: it has asked once more."""
        wait_for(lambda: int(httpx.get(self.url + "/polls").text) >= 2)

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url + "/calls").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[Callable[[int], list[StandIn]]]:
    """Starts so many copies."""
    with ExitStack() as stack:

        def start(number: int) -> list[StandIn]:
            made = [StandIn(tmp_path / f"copy-{index}") for index in range(1, number + 1)]
            for copy in made:
                stack.callback(copy.stop)
                copy.start()
            return made

        yield start
