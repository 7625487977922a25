"""Settings of the gateway, read once from the environment; a malformed value is an error at start."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class SettingsError(ValueError):
    """An environment variable is missing or malformed; the text names it and what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the gateway is told at start.

    Attributes:
        redis_url: where routes come from and usage goes to.
        fleet_token: bearer that workers demand.
        openai_http_key: bearer for `openai_http` copies, "" for none; workers never see it.
        gateway_id: stands in usage events.
        stale_seconds: longest time without contact to Redis before routes are too old to serve by.
        processes: serving processes; each has its own write-ahead log below `wal_dir`.
        cors_origins: browser origins that may call the API.
    """

    redis_url: str
    fleet_token: str
    openai_http_key: str = ""
    host: str = "127.0.0.1"
    port: int = 8001
    gateway_id: str = "gateway"
    stale_seconds: int = 300
    processes: int = 1
    wal_dir: Path = Path("var/wal")
    cors_origins: frozenset[str] = frozenset()

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Raises SettingsError naming the variable."""
        return cls(
            redis_url=_redis_url(environ),
            fleet_token=_token(environ, "GRAFTWORK_FLEET_TOKEN", required=True),
            openai_http_key=_token(environ, "GRAFTWORK_OPENAI_HTTP_KEY", required=False),
            host=environ.get("GRAFTWORK_GATEWAY_HOST", "127.0.0.1"),
            port=_integer(environ, "GRAFTWORK_GATEWAY_PORT", 8001, 1, 65535),
            gateway_id=_gateway_id(environ),
            stale_seconds=_integer(environ, "GRAFTWORK_GATEWAY_STALE_SECONDS", 300, 1, 300),
            processes=_integer(environ, "GRAFTWORK_GATEWAY_PROCESSES", 1, 1, 64),
            wal_dir=Path(environ.get("GRAFTWORK_WAL_DIR") or "var/wal"),
            cors_origins=_origins(environ),
        )


def _redis_url(environ: Mapping[str, str]) -> str:
    value = environ.get("GRAFTWORK_REDIS_URL", "")
    if urlsplit(value).scheme not in ("redis", "rediss", "unix"):
        raise SettingsError("GRAFTWORK_REDIS_URL must be a redis://, rediss:// or unix:// URL")
    return value


def _token(environ: Mapping[str, str], name: str, *, required: bool) -> str:
    value = environ.get(name, "")
    # The value is a secret: the message does not repeat it.
    if (required and not value) or not value.isascii() or any(mark.isspace() for mark in value):
        raise SettingsError(f"{name} must be {'a non-empty ' if required else ''}ASCII without white space")
    return value


def _integer(environ: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environ.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not low <= int(text) <= high:
        raise SettingsError(f"{name} must be an integer from {low} to {high}, got {text!r}")
    return int(text)


def _gateway_id(environ: Mapping[str, str]) -> str:
    value = environ.get("GRAFTWORK_GATEWAY_ID") or socket.gethostname()
    if _NAME.fullmatch(value) is None:
        raise SettingsError(f"GRAFTWORK_GATEWAY_ID must be 1-63 of A-Z a-z 0-9 . _ -, got {value!r}")
    return value


def _origins(environ: Mapping[str, str]) -> frozenset[str]:
    origins = [item.strip() for item in environ.get("GRAFTWORK_CORS_ORIGINS", "").split(",") if item.strip()]
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
            raise SettingsError(f"GRAFTWORK_CORS_ORIGINS: {origin!r} is not scheme://host[:port]")
    return frozenset(origins)
