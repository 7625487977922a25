"""The control plane's configuration: frozen, read once from GRAFTWORK_* variables."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from contracts.addresses import Networks
from contracts.environment import PREFIX, EnvironmentReader, SettingsError
from controlplane.platform.languages import SOURCE, languages
from controlplane.platform.open_endpoints import OpenEndpoints

ROOT: Final = Path(__file__).resolve().parents[2]
VAR: Final = ROOT / "var"
LOCALES: Final = ROOT / "controlplane" / "locale"
SIGN_UP_OFF: Final = "off"
SIGN_UP_OPEN: Final = "open"

_OTHER_PLANES: Final = (
    "API_KEY",
    "API_URL",
    "CLI_",
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
"""Prefixes of variables of the product's other processes: a supervisor may set all for every process."""
_MOST: Final = 999_999
"""Largest value of a number without a bound of its own."""
_CONNECTION_S: Final = 10
"""How long a request waits for a free database connection of the pool before it fails."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The operator's configuration.

    Attributes:
        database_url: `sqlite:////abs/path.db` or `postgresql://user:password@host:port/name`.
        database_connections: size of a process's PostgreSQL connection pool; 0 for no pool: each thread
            opens a connection and closes it after each request or task.
        gateway_url: public base URL of the gateway, ends in `/v1`.
        artifact_store: `file:///abs/folder` or `s3://bucket/prefix`.
        s3_endpoint_url: S3 API to use instead of AWS's; None for AWS.
        import_roots: folders from which `file://` adapter URIs may be registered.
        import_buckets: `bucket` or `bucket/prefix` from which `s3://` adapter URIs may be registered.
        trusted_proxies: networks of proxies whose X-Forwarded-For is trusted.
        sealing_keys: for secrets in the database: the first encrypts, all decrypt, secret_key is the last.
        hub_endpoint: URL of the Hugging Face hub, or of a server with its API.
        email_url: `smtp://`, `smtp+tls://` (STARTTLS) or `smtps://user:password@host:port`, or
            `file:///abs/folder`; "" writes e-mails to the log.
        email_from: sender address of e-mails.
        show_mail_links: show the links of sign-up and invitation e-mails on pages and, with an `email_url` of
            a folder, all e-mails at /mailbox/. A reader of such a page can act for the address, so this is
            only for a demo on one machine without a mail server.
        language: code (`en`) of e-mails, and of pages for browsers that ask for no available language.
        oidc_issuer: OpenID Connect provider for logins; "" for none.
        oidc_client_id, oidc_client_secret: our credentials at that provider.
        oidc_name: the provider's name on the login button.
        sign_up: who may sign up a tenant: `off` for nobody, `open` for everybody, or a comma-separated list
            of e-mail domains.
        sign_up_requests_per_minute, sign_up_tokens_per_minute: limits of a signed-up tenant until staff sets
            others; 0 refuses all its requests until then.
        sign_up_concurrency: its most concurrent requests.
        sign_up_adapters, sign_up_adapter_mb: its quota of adapters, and of megabytes of adapter files.
        deployment_drain_seconds: from the removal of a route until its copy may be removed.
        openai_http_key: bearer token for `openai_http` copies, the same as the gateways'.
        outgoing_allow: non-public endpoints that tenants' URLs may lead to.
        api_rate: REST calls a minute allowed to one key, person or address.
        tenant_grace_days: between a tenant's deletion and its purge.
        audit_keep_days: least age in days of audit records that may be removed.
        usage_keep_days: age in days at which usage events are dropped; their rollups stay.
        adapter_grace_days: days for which deleted adapters and versions can be restored.
        optimization_dir: working folder of optimization jobs; several hosts may share it.
        optimization_python: interpreter for `-m optimizer`; "" for this process's own.
        vllm: vLLM's program on this host, a path or a name on the PATH, for deployments that run it.
        heartbeat_file: file that a Celery worker touches every two seconds while connected to its broker.
    """

    # `repr=False` keeps secrets out of error pages and logs.
    redis_url: str = field(repr=False)
    database_url: str = field(repr=False)
    database_connections: int
    secret_key: str = field(repr=False)
    debug: bool
    allowed_hosts: tuple[str, ...]
    web_url: str
    gateway_url: str
    fleet_token: str = field(repr=False)
    openai_http_key: str = field(repr=False)
    deployment_drain_seconds: int
    artifact_store: str
    s3_endpoint_url: str | None
    import_roots: tuple[Path, ...]
    import_buckets: tuple[str, ...]
    trusted_proxies: Networks
    sealing_keys: tuple[str, ...] = field(repr=False)
    outgoing_allow: OpenEndpoints
    api_rate: int
    tenant_grace_days: int
    audit_keep_days: int
    usage_keep_days: int
    adapter_grace_days: int
    hub_endpoint: str
    email_url: str = field(repr=False)
    email_from: str
    show_mail_links: bool
    language: str
    oidc_issuer: str
    oidc_client_id: str
    oidc_client_secret: str = field(repr=False)
    oidc_name: str
    sign_up: str
    sign_up_requests_per_minute: int
    sign_up_tokens_per_minute: int
    sign_up_concurrency: int
    sign_up_adapters: int
    sign_up_adapter_mb: int
    optimization_dir: Path
    optimization_python: str
    vllm: str
    heartbeat_file: Path | None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the configuration. Raises SettingsError naming an unknown or malformed variable."""
        env = EnvironmentReader(environ)
        secret_key = env.text("SECRET_KEY") or _own_secret_key(VAR / "secret-key")
        environment = cls(
            redis_url=env.url("REDIS_URL", ("redis", "rediss", "unix"), "redis://127.0.0.1:6379/0"),
            database_url=_database_url(env),
            database_connections=env.integer("DATABASE_CONNECTIONS", 0, 0, 1000),
            secret_key=secret_key,
            debug=env.flag("DEBUG"),
            allowed_hosts=env.words("ALLOWED_HOSTS") or ("localhost", "127.0.0.1", "[::1]"),
            web_url=env.url("WEB_URL", ("http", "https"), "http://127.0.0.1:8000").rstrip("/"),
            gateway_url=_gateway_url(env),
            fleet_token=env.secret("FLEET_TOKEN"),
            deployment_drain_seconds=env.integer("DEPLOYMENT_DRAIN_SECONDS", 30, 0, 3600),
            openai_http_key=env.secret("OPENAI_HTTP_KEY"),
            artifact_store=env.url("ARTIFACT_STORE", ("file", "s3"), f"file://{VAR / 'artifacts'}"),
            s3_endpoint_url=env.url("S3_ENDPOINT_URL", ("http", "https"), "") or None,
            import_roots=tuple(_folder(text) for text in env.words("IMPORT_ROOTS", ":")),
            import_buckets=tuple(text.strip("/") for text in env.words("IMPORT_BUCKETS")),
            trusted_proxies=env.parsed("TRUSTED_PROXIES", Networks),
            sealing_keys=(*_sealing_keys(env), secret_key),
            email_url=env.url("EMAIL_URL", ("smtp", "smtp+tls", "smtps", "file"), ""),
            email_from=env.text("EMAIL_FROM", "Graftwork <graftwork@localhost>"),
            show_mail_links=_show_mail_links(env),
            language=_language(env.text("LANGUAGE", SOURCE)),
            oidc_issuer=env.url("OIDC_ISSUER", ("http", "https"), "").rstrip("/"),
            oidc_client_id=_needed_with(env, "OIDC_CLIENT_ID", "OIDC_ISSUER"),
            oidc_client_secret=_needed_with(env, "OIDC_CLIENT_SECRET", "OIDC_ISSUER"),
            oidc_name=env.text("OIDC_NAME", "single sign-on"),
            sign_up=_sign_up(env),
            sign_up_requests_per_minute=env.integer("SIGN_UP_REQUESTS_PER_MINUTE", 60, 0, _MOST),
            sign_up_tokens_per_minute=env.integer("SIGN_UP_TOKENS_PER_MINUTE", 60_000, 0, 99_999_999),
            sign_up_concurrency=env.integer("SIGN_UP_CONCURRENCY", 8, 0, _MOST),
            sign_up_adapters=env.integer("SIGN_UP_ADAPTERS", 20, 0, _MOST),
            sign_up_adapter_mb=env.integer("SIGN_UP_ADAPTER_MB", 2000, 0, _MOST),
            outgoing_allow=env.parsed("OUTGOING_ALLOW", OpenEndpoints.parse),
            api_rate=env.integer("API_RATE", 1200, 1, _MOST),
            tenant_grace_days=env.integer("TENANT_GRACE_DAYS", 30, 1, _MOST),
            audit_keep_days=env.integer("AUDIT_KEEP_DAYS", 365, 1, _MOST),
            usage_keep_days=env.integer("USAGE_KEEP_DAYS", 400, 45, _MOST),
            adapter_grace_days=env.integer("ADAPTER_GRACE_DAYS", 7, 0, 3650),
            hub_endpoint=env.url("HUB_ENDPOINT", ("http", "https"), "https://huggingface.co").rstrip("/"),
            optimization_dir=_folder(
                env.text("OPTIMIZATION_DIR", str(VAR / "optimization")),
                expected="OPTIMIZATION_DIR must be an absolute folder",
            ),
            optimization_python=env.text("OPTIMIZATION_PYTHON"),
            vllm=env.text("VLLM", "vllm"),
            heartbeat_file=Path(path) if (path := env.text("HEARTBEAT_FILE")) else None,
        )
        env.refuse_unknown(_OTHER_PLANES)
        return environment

    def database(self) -> dict[str, Any]:
        """Django's DATABASES entry for `database_url`."""
        parts = urlsplit(self.database_url)
        if parts.scheme == "sqlite":
            return _sqlite(Path(unquote(parts.path)))
        pool = {"min_size": 1, "max_size": self.database_connections, "timeout": _CONNECTION_S}
        return {
            "ENGINE": "controlplane.platform.row_security.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": str(parts.port or ""),
            "OPTIONS": dict(parse_qsl(parts.query)) | ({"pool": pool} if self.database_connections else {}),
            "CONN_HEALTH_CHECKS": True,
        }

    def oidc_apps(self) -> list[dict[str, Any]]:
        """allauth's description of the OpenID Connect provider, if there is one."""
        if not self.oidc_issuer:
            return []
        return [
            {
                "provider_id": "sso",
                "name": self.oidc_name,
                "client_id": self.oidc_client_id,
                "secret": self.oidc_client_secret,
                "settings": {"server_url": self.oidc_issuer},
            }
        ]

    def email(self) -> dict[str, Any]:
        """Django's settings for `email_url`."""
        parts = urlsplit(self.email_url)
        backends = "django.core.mail.backends"
        if not parts.scheme:
            return {"EMAIL_BACKEND": f"{backends}.console.EmailBackend"}
        if parts.scheme == "file":
            return {
                "EMAIL_BACKEND": f"{backends}.filebased.EmailBackend",
                "EMAIL_FILE_PATH": unquote(parts.path),
            }
        return {
            "EMAIL_BACKEND": f"{backends}.smtp.EmailBackend",
            "EMAIL_HOST": parts.hostname or "",
            "EMAIL_PORT": parts.port or {"smtp": 25, "smtp+tls": 587, "smtps": 465}[parts.scheme],
            "EMAIL_HOST_USER": unquote(parts.username or ""),
            "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
            "EMAIL_USE_TLS": parts.scheme == "smtp+tls",
            "EMAIL_USE_SSL": parts.scheme == "smtps",
            "EMAIL_TIMEOUT": 20,
        }


def _language(code: str) -> str:
    if code not in (known := languages(LOCALES)):
        raise SettingsError(
            f"GRAFTWORK_LANGUAGE is {code!r}, which has no compiled catalogue in {LOCALES}; available "
            f"are"
            f" {', '.join(known)}"
        )
    return code


def _sqlite(path: Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
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
    }


def _database_url(env: EnvironmentReader) -> str:
    text = env.url("DATABASE_URL", ("sqlite", "postgresql"), f"sqlite:///{VAR / 'graftwork.db'}")
    # `sqlite:////abs/path` and `sqlite:///abs/path` name the same file.
    return text.replace("sqlite:////", "sqlite:///", 1)


def _gateway_url(env: EnvironmentReader) -> str:
    text = env.url("GATEWAY_URL", ("http", "https"), "http://127.0.0.1:8001/v1").rstrip("/")
    if not text.endswith("/v1"):
        raise SettingsError(f"{PREFIX}GATEWAY_URL must end in /v1, got {text!r}")
    return text


def _sealing_keys(env: EnvironmentReader) -> tuple[str, ...]:
    keys = env.words("SEALING_KEYS")
    if any(len(key) < 32 for key in keys):
        raise SettingsError(f"{PREFIX}SEALING_KEYS: a key must have at least 32 random characters")
    return keys


def _needed_with(env: EnvironmentReader, name: str, other: str) -> str:
    text = env.text(name)
    if env.text(other) and not text:
        raise SettingsError(f"{PREFIX}{name} is required with {PREFIX}{other}")
    return text


def _sign_up(env: EnvironmentReader) -> str:
    rule = (env.text("SIGN_UP").strip() or SIGN_UP_OFF).lower()
    if rule in (SIGN_UP_OFF, SIGN_UP_OPEN):
        return rule
    domains = [word.strip() for word in rule.split(",") if word.strip()]
    for domain in domains:
        if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", domain) is None:
            raise SettingsError(
                f"{PREFIX}SIGN_UP must be off, open, or domains such as example.com with commas between,"
                f" got {domain!r}"
            )
    return ",".join(domains)


def _show_mail_links(env: EnvironmentReader) -> bool:
    if not env.flag("SHOW_MAIL_LINKS"):
        return False
    if not env.text("EMAIL_URL", "file:").startswith("file:"):
        raise SettingsError(
            f"{PREFIX}SHOW_MAIL_LINKS excludes an {PREFIX}EMAIL_URL of a mail server: unset one of them"
        )
    host = urlsplit(env.text("WEB_URL")).hostname
    if host not in (None, "localhost", "127.0.0.1", "::1"):
        raise SettingsError(
            f"{PREFIX}SHOW_MAIL_LINKS lets anyone act for any e-mail address: it is for demos on"
            f" "
            f"localhost, and {PREFIX}WEB_URL is at {host}"
        )
    return True


def _folder(text: str, expected: str = "IMPORT_ROOTS must list absolute folders") -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise SettingsError(f"{PREFIX}{expected}, got {text!r}")
    return path.resolve()


def _own_secret_key(path: Path) -> str:
    """Return this installation's secret key, created at first use and readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    try:
        # Linked into place when complete, so that a process starting at the same time reads all of it.
        fresh.write_text(secrets.token_hex(32))
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return path.read_text()
