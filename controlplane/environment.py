"""The control plane's configuration: frozen, read once from GRAFTWORK_* variables."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from controlplane.errors import SettingsError

ROOT: Final = Path(__file__).resolve().parent.parent
VAR: Final = ROOT / "var"

_PREFIX: Final = "GRAFTWORK_"
_OTHER_PLANES: Final = (
    "CORS_",
    "DEMO_",
    "ENGINE_",
    "GATEWAY_",
    "OPENAI_HTTP_",
    "TEST_",
    "TUNED_",
    "VLLM_",
    "WAL_",
    "WORKER_",
    "BENCH_",
)
"""Beginnings of names that other processes of the product read; a supervisor hands all to everyone."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the operator sets.

    Attributes:
        database_url: `sqlite:////abs/path.db` or `postgresql://user:password@host:port/name`.
        gateway_url: public base URL of the gateway, ends in `/v1`.
        artifact_store: `file:///abs/folder` or `s3://bucket/prefix`.
        s3_endpoint_url: S3 API to use instead of AWS's; None for AWS.
        import_roots: folders from which `file://` adapter URIs may be registered.
        import_buckets: `bucket` or `bucket/prefix`, from which `s3://` adapter URIs may be.
    """

    # What holds a secret stays out of error pages and logs.
    redis_url: str = field(repr=False)
    database_url: str = field(repr=False)
    secret_key: str = field(repr=False)
    debug: bool
    allowed_hosts: tuple[str, ...]
    web_url: str
    gateway_url: str
    fleet_token: str = field(repr=False)
    artifact_store: str
    s3_endpoint_url: str | None
    import_roots: tuple[Path, ...]
    import_buckets: tuple[str, ...]

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Raises SettingsError naming the variable that is unknown or malformed."""
        _refuse_unknown(env)
        return cls(
            redis_url=_url(env, "REDIS_URL", "redis://127.0.0.1:6379/0", ("redis", "rediss", "unix")),
            database_url=_url(
                env, "DATABASE_URL", f"sqlite:///{VAR / 'graftwork.db'}", ("sqlite", "postgresql")
            ),
            secret_key=env.get("GRAFTWORK_SECRET_KEY") or _own_secret_key(VAR / "secret-key"),
            debug=_flag(env, "DEBUG"),
            allowed_hosts=_words(env, "ALLOWED_HOSTS", ",") or ("localhost", "127.0.0.1", "[::1]"),
            web_url=_url(env, "WEB_URL", "http://127.0.0.1:8000", ("http", "https")).rstrip("/"),
            gateway_url=_gateway_url(env),
            fleet_token=env.get("GRAFTWORK_FLEET_TOKEN", ""),
            artifact_store=_url(env, "ARTIFACT_STORE", f"file://{VAR / 'artifacts'}", ("file", "s3")),
            s3_endpoint_url=_url(env, "S3_ENDPOINT_URL", "", ("http", "https")) or None,
            import_roots=tuple(_folder(text) for text in _words(env, "IMPORT_ROOTS", ":")),
            import_buckets=tuple(text.strip("/") for text in _words(env, "IMPORT_BUCKETS", ",")),
        )

    def database(self) -> dict[str, Any]:
        """Django's DATABASES entry for `database_url`."""
        parts = urlsplit(self.database_url)
        if parts.scheme == "sqlite":
            return _sqlite(Path(unquote(parts.path)))
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": str(parts.port or ""),
            "OPTIONS": dict(parse_qsl(parts.query)),
            "CONN_HEALTH_CHECKS": True,
            "TEST": {"NAME": f"test_graftwork_{os.getpid()}"},
        }


def _sqlite(path: Path) -> dict[str, Any]:
    for folder in (path.parent, VAR / "test"):
        folder.mkdir(parents=True, exist_ok=True)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        # IMMEDIATE: a transaction that will write takes the lock at its start, where the busy timeout
        # holds; upgrading a read lock later fails at once with "database is locked".
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
        },
        # A file, since threads and child processes of a test open it too; one per test process.
        "TEST": {"NAME": str(VAR / "test" / f"{os.getpid()}.db")},
    }


def _refuse_unknown(env: Mapping[str, str]) -> None:
    own = {_PREFIX + name.upper() for name in Environment.__dataclass_fields__}
    others = tuple(_PREFIX + name for name in _OTHER_PLANES)
    for name in sorted(env):
        if name.startswith(_PREFIX) and name not in own and not name.startswith(others):
            raise SettingsError(f"{name} is not a known setting; known are {', '.join(sorted(own))}")


def _url(env: Mapping[str, str], name: str, default: str, schemes: tuple[str, ...]) -> str:
    text = env.get(_PREFIX + name, default).strip()
    if not text and not default:
        return text
    parts = urlsplit(text)
    if parts.scheme not in schemes or not (parts.netloc or parts.path.strip("/")):
        accepted = " or ".join(f"{scheme}://" for scheme in schemes)
        # A URL may hold a password: only its beginning is repeated.
        raise SettingsError(
            f"{_PREFIX}{name} must be a URL that begins with {accepted}, got {parts.scheme or 'none'}://"
        )
    if parts.scheme in ("sqlite", "file") and (parts.netloc or not parts.path.startswith("/")):
        raise SettingsError(
            f"{_PREFIX}{name} must name an absolute path, as {parts.scheme}:///..., got {text!r}"
        )
    if parts.scheme == "sqlite" and parts.path.startswith("//"):
        text = f"sqlite://{parts.path[1:]}"
    return text


def _gateway_url(env: Mapping[str, str]) -> str:
    text = _url(env, "GATEWAY_URL", "http://127.0.0.1:8001/v1", ("http", "https")).rstrip("/")
    if not text.endswith("/v1"):
        raise SettingsError(f"{_PREFIX}GATEWAY_URL must end in /v1, got {text!r}")
    return text


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(_PREFIX + name, "0")
    if text not in ("0", "1"):
        raise SettingsError(f"{_PREFIX}{name} must be 0 or 1, got {text!r}")
    return text == "1"


def _words(env: Mapping[str, str], name: str, separator: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in env.get(_PREFIX + name, "").split(separator) if word.strip())


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise SettingsError(f"{_PREFIX}IMPORT_ROOTS must list absolute folders, got {text!r}")
    return path.resolve()


def _own_secret_key(path: Path) -> str:
    """This installation's key, made at first use and readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    try:
        # Linked into place whole, so that a process starting at the same time never reads half of it.
        fresh.write_text(secrets.token_hex(32))
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return path.read_text()
