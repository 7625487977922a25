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
from contracts.environment import PREFIX, EnvironmentReader, SettingsError
from gateway.api.bodies import BODY_BYTES, BODY_SECONDS
from gateway.lifecycle.drain import DRAIN_SECONDS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"(?=[a-z0-9.-]{1,253}$)[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
STALL_SECONDS: Final = 60
_FORMATS: Final = ("auto", "json", "text")
_OTHERS: Final = ("GATEWAY_URL",)
"""Settings of other processes whose names begin as the gateway's do."""


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
        image_hosts: hosts whose https images copies may fetch; without one, images come in data URLs alone.
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
    image_hosts: frozenset[str] = frozenset()
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
        env = EnvironmentReader(environ)
        settings = cls(
            redis_url=env.url("REDIS_URL", ("redis", "rediss", "unix")),
            fleet_token=env.secret("FLEET_TOKEN", required=True),
            openai_http_key=env.secret("OPENAI_HTTP_KEY"),
            host=env.text("GATEWAY_HOST", "127.0.0.1"),
            port=env.integer("GATEWAY_PORT", 8001, 1, 65535),
            gateway_id=_gateway_id(env),
            stale_seconds=env.integer("GATEWAY_STALE_SECONDS", 300, 1, 300),
            processes=env.integer("GATEWAY_PROCESSES", 1, 1, 64),
            wal_dir=Path(env.text("WAL_DIR", "var/wal")),
            cors_origins=env.parsed("CORS_ORIGINS", _origins),
            queue_seconds=env.integer("GATEWAY_QUEUE_SECONDS", 10, 0, 600),
            queue_length=env.integer("GATEWAY_QUEUE_LENGTH", 256, 0, 100_000),
            held=env.integer("GATEWAY_HELD", 64, 0, 100_000),
            trusted_proxies=env.parsed("TRUSTED_PROXIES", Networks),
            connections=env.integer("GATEWAY_CONNECTIONS", 16_384, 1, 1_000_000),
            header_seconds=env.integer("GATEWAY_HEADER_SECONDS", 30, 1, 3600),
            body_seconds=env.integer("GATEWAY_BODY_SECONDS", BODY_SECONDS, 1, 3600),
            body_bytes=env.integer("GATEWAY_BODY_BYTES", BODY_BYTES, 1024, 1 << 30),
            image_hosts=env.parsed("GATEWAY_IMAGE_HOSTS", _hosts),
            stall_seconds=env.integer("GATEWAY_STALL_SECONDS", STALL_SECONDS, 1, 3600),
            drain_seconds=env.integer("GATEWAY_DRAIN_SECONDS", DRAIN_SECONDS, 1, 3600),
            tls=_tls(env),
            backend_ca=env.file("GATEWAY_BACKEND_CA"),
            metrics_token=env.secret("GATEWAY_METRICS_TOKEN"),
            metrics_adapters=env.integer("GATEWAY_METRICS_ADAPTERS", 50, 0, 1000),
            access_log=env.choice("GATEWAY_ACCESS_LOG", ("off", "on")) == "on",
            log_format=env.choice("GATEWAY_LOG_FORMAT", _FORMATS),
            log_level=env.choice("GATEWAY_LOG_LEVEL", _LEVELS, "INFO"),
        )
        env.refuse_unknown(_OTHERS, beginning="GATEWAY_")
        return settings


def _gateway_id(env: EnvironmentReader) -> str:
    value = env.text("GATEWAY_ID") or socket.gethostname()
    if _NAME.fullmatch(value) is None:
        raise SettingsError(f"{PREFIX}GATEWAY_ID must be 1-63 of A-Z a-z 0-9 . _ -, got {value!r}")
    return value


def _origins(origins: tuple[str, ...]) -> frozenset[str]:
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
            raise ValueError(f"{origin!r} is not scheme://host[:port]")
    return frozenset(origins)


def _hosts(hosts: tuple[str, ...]) -> frozenset[str]:
    for host in hosts:
        if _HOST.fullmatch(host) is None:
            raise ValueError(f"{host!r} is not a host's name in lower case")
    return frozenset(hosts)


def _tls(env: EnvironmentReader) -> Tls | None:
    certificate, key = env.file("GATEWAY_TLS_CERT"), env.file("GATEWAY_TLS_KEY")
    client_ca = env.file("GATEWAY_TLS_CLIENT_CA")
    minimum = env.choice("GATEWAY_TLS_MIN_VERSION", ("1.2", "1.3"))
    if certificate is None or key is None:
        if certificate is not None or key is not None or client_ca is not None:
            prefix = PREFIX + "GATEWAY_TLS_"
            raise SettingsError(
                f"{prefix}CERT and {prefix}KEY are needed together, and with {prefix}CLIENT_CA"
            )
        return None
    return Tls(certificate=certificate, key=key, minimum=minimum, client_ca=client_ca)
