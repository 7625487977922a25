"""Settings of the gateway, read once from the environment; a malformed value is an error at start."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from contracts.addresses import Networks
from gateway.api.bodies import BODY_BYTES, BODY_SECONDS
from gateway.lifecycle.drain import DRAIN_SECONDS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
STALL_SECONDS: Final = 60
_FORMATS: Final = ("auto", "json", "text")


class SettingsError(ValueError):
    """An environment variable is missing or malformed; the text names it and the accepted values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of the gateway, and of clients where certificates are required.

    Attributes:
        certificate, key: PEM files; the certificate's with its chain.
        minimum: lowest TLS version, `1.2` or `1.3`.
        client_ca: PEM file of authorities for client certificates; None requires no certificate.
    """

    certificate: Path
    key: Path
    minimum: str = "1.2"
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The gateway's settings.

    Attributes:
        redis_url: source of routes and destination of usage.
        fleet_token: bearer token for workers.
        openai_http_key: bearer token for `openai_http` copies, "" for none; workers never see it.
        gateway_id: the id in usage events.
        stale_seconds: longest time without contact to Redis before routes are too old to serve by.
        processes: serving processes; each has its own write-ahead log below `wal_dir`.
        cors_origins: browser origins that may call the API.
        queue_seconds: longest wait of a request for a place under a concurrency limit.
        queue_length: most requests in that queue of one limit, per serving process.
        held: most requests that wait for the first copy of one base model, per serving process.
        trusted_proxies: proxies whose X-Forwarded-For gives a client's address.
        connections: most open connections, per serving process; more wait to be accepted.
        header_seconds: longest wait for a request's headers, and so for an idle connection's next request.
        body_seconds: longest wait for a request's body.
        body_bytes: largest body.
        stall_seconds: longest wait for a client to read more of an answer.
        drain_seconds: how long running requests may go on after the gateway was asked to stop.
        tls: None serves plain HTTP.
        backend_ca: PEM file of authorities, in addition to the system's, for copies behind https://.
        metrics_token: bearer token for GET /metrics; "" disables that route.
        metrics_adapters: adapters with metrics of their own, per serving process.
        access_log: True logs a line for each request.
        log_format: `json`, `text`, or `auto`: text at a terminal.
        log_level: lowest logged level.
    """

    redis_url: str = field(repr=False)
    fleet_token: str = field(repr=False)
    openai_http_key: str = field(default="", repr=False)
    host: str = "127.0.0.1"
    port: int = 8001
    gateway_id: str = "gateway"
    stale_seconds: int = 300
    processes: int = 1
    wal_dir: Path = Path("var/wal")
    cors_origins: frozenset[str] = frozenset()
    queue_seconds: int = 10
    queue_length: int = 256
    held: int = 64
    trusted_proxies: Networks = field(default_factory=Networks)
    connections: int = 16_384
    header_seconds: int = 30
    body_seconds: int = BODY_SECONDS
    body_bytes: int = BODY_BYTES
    stall_seconds: int = STALL_SECONDS
    drain_seconds: int = DRAIN_SECONDS
    tls: Tls | None = None
    backend_ca: Path | None = None
    metrics_token: str = field(default="", repr=False)
    metrics_adapters: int = 50
    access_log: bool = False
    log_format: str = "auto"
    log_level: str = "INFO"

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from environment variables. Raises SettingsError naming the variable."""
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
            queue_seconds=_integer(environ, "GRAFTWORK_GATEWAY_QUEUE_SECONDS", 10, 0, 600),
            queue_length=_integer(environ, "GRAFTWORK_GATEWAY_QUEUE_LENGTH", 256, 0, 100_000),
            held=_integer(environ, "GRAFTWORK_GATEWAY_HELD", 64, 0, 100_000),
            trusted_proxies=_proxies(environ),
            connections=_integer(environ, "GRAFTWORK_GATEWAY_CONNECTIONS", 16_384, 1, 1_000_000),
            header_seconds=_integer(environ, "GRAFTWORK_GATEWAY_HEADER_SECONDS", 30, 1, 3600),
            body_seconds=_integer(environ, "GRAFTWORK_GATEWAY_BODY_SECONDS", BODY_SECONDS, 1, 3600),
            body_bytes=_integer(environ, "GRAFTWORK_GATEWAY_BODY_BYTES", BODY_BYTES, 1024, 1 << 30),
            stall_seconds=_integer(environ, "GRAFTWORK_GATEWAY_STALL_SECONDS", STALL_SECONDS, 1, 3600),
            drain_seconds=_integer(environ, "GRAFTWORK_GATEWAY_DRAIN_SECONDS", DRAIN_SECONDS, 1, 3600),
            tls=_tls(environ),
            backend_ca=_file(environ, "GRAFTWORK_GATEWAY_BACKEND_CA"),
            metrics_token=_token(environ, "GRAFTWORK_GATEWAY_METRICS_TOKEN", required=False),
            metrics_adapters=_integer(environ, "GRAFTWORK_GATEWAY_METRICS_ADAPTERS", 50, 0, 1000),
            access_log=_choice(environ, "GRAFTWORK_GATEWAY_ACCESS_LOG", ("off", "on")) == "on",
            log_format=_choice(environ, "GRAFTWORK_GATEWAY_LOG_FORMAT", _FORMATS),
            log_level=_choice(environ, "GRAFTWORK_GATEWAY_LOG_LEVEL", _LEVELS, "INFO"),
        )


def _redis_url(environ: Mapping[str, str]) -> str:
    value = environ.get("GRAFTWORK_REDIS_URL", "")
    if urlsplit(value).scheme not in ("redis", "rediss", "unix"):
        raise SettingsError("GRAFTWORK_REDIS_URL must be a redis://, rediss:// or unix:// URL")
    return value


def _token(environ: Mapping[str, str], name: str, *, required: bool) -> str:
    value = environ.get(name, "")
    # The value is a secret, so the message does not repeat it.
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


def _choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...], default: str = "") -> str:
    """Return one of `choices`; without a default the first."""
    value = environ.get(name) or default or choices[0]
    if value not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


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


def _proxies(environ: Mapping[str, str]) -> Networks:
    words = environ.get("GRAFTWORK_TRUSTED_PROXIES", "").split(",")
    try:
        return Networks(word.strip() for word in words if word.strip())
    except ValueError as error:
        raise SettingsError(f"GRAFTWORK_TRUSTED_PROXIES: {error}") from None


def _file(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(name, "")
    if text and not Path(text).is_file():
        raise SettingsError(f"{name} must be the path of a file, got {text!r}")
    return Path(text) if text else None


def _tls(environ: Mapping[str, str]) -> Tls | None:
    prefix = "GRAFTWORK_GATEWAY_TLS_"
    certificate, key = _file(environ, prefix + "CERT"), _file(environ, prefix + "KEY")
    client_ca = _file(environ, prefix + "CLIENT_CA")
    minimum = environ.get(prefix + "MIN_VERSION", "1.2")
    if minimum not in ("1.2", "1.3"):
        raise SettingsError(f"{prefix}MIN_VERSION must be 1.2 or 1.3, got {minimum!r}")
    if certificate is None or key is None:
        if certificate is not None or key is not None or client_ca is not None:
            raise SettingsError(
                f"{prefix}CERT and {prefix}KEY are needed together, and with {prefix}CLIENT_CA"
            )
        return None
    return Tls(certificate=certificate, key=key, minimum=minimum, client_ca=client_ca)
