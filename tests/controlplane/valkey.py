"""A Valkey server that a test stops and starts."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import redis

from demo.valkey import server_command
from tests.conftest import free_port, stop
from tests.waiting import eventually


class Valkey:
    """A server that runs after `start`; its data is lost after `stop`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        command = server_command(port=self._port, folder=self._folder)
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with redis.Redis(port=self._port) as client:
            eventually(lambda: _answers(client), message="valkey did not start")

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
            self._process = None


def _answers(client: redis.Redis) -> bool:
    with suppress(redis.exceptions.ConnectionError):
        return bool(client.ping())
    return False
