"""The demo's configuration: frozen, and the folders, ports and URLs that follow from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from demo.errors import DemoError
from demo.model import DEFAULT_FOLDER, MODEL_NAME, ROOT, model_folder
from worker_engine.protocol import SLUG_PATTERN

_HOST: Final = "127.0.0.1"
_PORTS: Final = {"web": 0, "gateway": 1, "worker": 2, "valkey": 3}
"""Offsets from the port base."""
DEFAULT_PORT_BASE: Final = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Where one demo lives.

    Attributes:
        port_base: the web UI's port; gateway, worker and Valkey take the next three.
        var: folder of everything the demo writes: `var/demo/`, `var/demo.json`.
        database: `sqlite:///...` or `postgresql://...`; None for a SQLite file under `var`.
        redis: URL of a server to use; None starts a Valkey child process.
        model: Hugging Face folder of the base model.
    """

    port_base: int = DEFAULT_PORT_BASE
    var: Path = ROOT / "var"
    database: str | None = None
    redis: str | None = None
    model: Path = field(default_factory=model_folder)

    def __post_init__(self) -> None:
        highest = 65535 - max(_PORTS.values())
        if not 1024 <= self.port_base <= highest:
            raise DemoError(f"PORT_BASE must be from 1024 to {highest}, got {self.port_base}")
        object.__setattr__(self, "var", self.var.resolve())

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ, *, port_base: int, var: Path) -> Self:
        """Takes GRAFTWORK_DATABASE_URL, GRAFTWORK_REDIS_URL and GRAFTWORK_DEMO_MODEL when set."""
        return cls(
            port_base=port_base,
            var=var,
            database=environment.get("GRAFTWORK_DATABASE_URL") or None,
            redis=environment.get("GRAFTWORK_REDIS_URL") or None,
            model=model_folder(environment),
        )

    @property
    def state(self) -> Path:
        """Folder of database, secrets, artifacts, logs."""
        return self.var / "demo"

    @property
    def description(self) -> Path:
        """What a script reads; see `demo.supervisor.Description`."""
        return self.var / "demo.json"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def base_model(self) -> str:
        """The base model's name, as a client sends it."""
        if self.model == DEFAULT_FOLDER:
            return MODEL_NAME
        slug = "-".join("".join(c if c.isalnum() else " " for c in self.model.name.lower()).split())[:63]
        return slug if SLUG_PATTERN.fullmatch(slug) else "base-model"

    @property
    def ports(self) -> dict[str, int]:
        """Port by the name of the process that listens on it."""
        names = [name for name in _PORTS if name != "valkey" or self.redis is None]
        return {name: self.port_base + _PORTS[name] for name in names}

    def url(self, name: str) -> str:
        """Base URL of `web`, `gateway` or `worker`, without a path."""
        return f"http://{_HOST}:{self.ports[name]}"

    @property
    def redis_url(self) -> str:
        return self.redis or f"redis://{_HOST}:{self.ports['valkey']}/0"

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.state / 'graftwork.db'}"

    def environment(self, *, secret_key: str, fleet_token: str) -> dict[str, str]:
        """GRAFTWORK_* variables of the child processes."""
        origins = (self.url("web"), self.url("web").replace(_HOST, "localhost"))
        return {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "PYTHONUNBUFFERED": "1",
            "GRAFTWORK_REDIS_URL": self.redis_url,
            "GRAFTWORK_DATABASE_URL": self.database_url,
            "GRAFTWORK_SECRET_KEY": secret_key,
            "GRAFTWORK_FLEET_TOKEN": fleet_token,
            "GRAFTWORK_ALLOWED_HOSTS": f"{_HOST},localhost",
            "GRAFTWORK_WEB_URL": self.url("web"),
            "GRAFTWORK_GATEWAY_URL": f"{self.url('gateway')}/v1",
            "GRAFTWORK_ARTIFACT_STORE": f"file://{self.state / 'artifacts'}",
            "GRAFTWORK_IMPORT_ROOTS": str(ROOT / "demo" / "adapters"),
            "GRAFTWORK_GATEWAY_HOST": _HOST,
            "GRAFTWORK_GATEWAY_PORT": str(self.ports["gateway"]),
            "GRAFTWORK_GATEWAY_ID": "demo",
            "GRAFTWORK_WAL_DIR": str(self.state / "wal"),
            "GRAFTWORK_CORS_ORIGINS": ",".join(origins),
        }
