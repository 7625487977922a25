"""The demo's configuration: frozen, with the derived folders, ports and URLs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from contracts.adapters.reference import SLUG_PATTERN
from demo.errors import DemoError
from demo.model import DEFAULT_FOLDER, MODEL_NAME, ROOT, model_folder

_HOST: Final = "127.0.0.1"
_PREFIX: Final = "GRAFTWORK_"
_NOT_HERE: Final = ("GRAFTWORK_GATEWAY_TLS_", "GRAFTWORK_TRUST_NETWORK")
"""Prefixes of settings that a demo on a loopback interface cannot apply."""
_READ: Final = frozenset(_PREFIX + name for name in ("DATABASE_URL", "REDIS_URL", "IMPORT_ROOTS"))
"""Settings that the demo reads itself; see `DemoConfig.environment`."""
_PORTS: Final = {"web": 0, "gateway": 1, "worker": 2, "valkey": 3}
"""Offsets from the port base."""
DEFAULT_PORT_BASE: Final = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Location and settings of one demo.

    Attributes:
        port_base: the web UI's port; gateway, worker and Valkey take the next three.
        var: folder of everything the demo writes: `var/demo/`, `var/demo.json`.
        database: `sqlite:///...` or `postgresql://...`; None for a SQLite file under `var`.
        redis: URL of a server to use; None starts a Valkey child process.
        model: Hugging Face folder of the base model.
        settings: GRAFTWORK_* variables for the processes; the demo's own take precedence.
        sample: add sample data at the first start.
    """

    port_base: int = DEFAULT_PORT_BASE
    var: Path = ROOT / "var"
    database: str | None = None
    redis: str | None = None
    model: Path = field(default_factory=model_folder)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    sample: bool = False

    def __post_init__(self) -> None:
        highest = 65535 - max(_PORTS.values())
        if not 1024 <= self.port_base <= highest:
            raise DemoError(f"PORT_BASE must be from 1024 to {highest}, got {self.port_base}")
        object.__setattr__(self, "var", self.var.resolve())

    @classmethod
    def from_env(
        cls, environment: Mapping[str, str] = os.environ, *, port_base: int, var: Path, sample: bool = False
    ) -> Self:
        """Read the GRAFTWORK_* variables that are set and not empty."""
        return cls(
            port_base=port_base,
            var=var,
            sample=sample,
            database=environment.get("GRAFTWORK_DATABASE_URL") or None,
            redis=environment.get("GRAFTWORK_REDIS_URL") or None,
            model=model_folder(environment),
            settings={
                name: value for name, value in environment.items() if name.startswith(_PREFIX) and value
            },
        )

    @property
    def state(self) -> Path:
        """Folder of database, secrets, artifacts, logs."""
        return self.var / "demo"

    @property
    def description(self) -> Path:
        """File that describes the running demo to scripts; see `demo.supervisor.Description`."""
        return self.var / "demo.json"

    @property
    def sample_state(self) -> Path:
        """File that exists once the sample data was added or removed."""
        return self.state / "sample"

    @property
    def mailbox(self) -> Path:
        """Folder of the e-mails that were sent, without a GRAFTWORK_EMAIL_URL."""
        return self.state / "mail"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def base_model(self) -> str:
        """The base model's name, as clients send it."""
        if self.model == DEFAULT_FOLDER:
            return MODEL_NAME
        slug = "-".join("".join(c if c.isalnum() else " " for c in self.model.name.lower()).split())[:63]
        return slug if SLUG_PATTERN.fullmatch(slug) else "base-model"

    @property
    def ports(self) -> dict[str, int]:
        """Port by the name of its process."""
        names = [name for name in _PORTS if name != "valkey" or self.redis is None]
        return {name: self.port_base + _PORTS[name] for name in names}

    def url(self, name: str) -> str:
        """Base URL of `web`, `gateway` or `worker`, without a path."""
        return f"http://{_HOST}:{self.ports[name]}"

    @property
    def redis_url(self) -> str:
        return self.redis or f"redis://{_HOST}:{self.ports['valkey']}/0"

    @property
    def database_file(self) -> Path:
        """The SQLite file, if no `database` is configured."""
        return self.state / "graftwork.db"

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.database_file}"

    def environment(self, *, secret_key: str, fleet_token: str) -> dict[str, str]:
        """Return the child processes' variables: `settings`, and those that the demo sets itself."""
        settings = {name: value for name, value in self.settings.items() if not name.startswith(_NOT_HERE)}
        # Visitors sign up as the product's users would. Without a mail server, a page shows the e-mails.
        if "GRAFTWORK_EMAIL_URL" not in settings:
            mailbox = {"GRAFTWORK_SHOW_MAIL_LINKS": "1", "GRAFTWORK_EMAIL_URL": f"file://{self.mailbox}"}
            settings = mailbox | settings
        settings = {"GRAFTWORK_SIGN_UP": "open"} | settings
        return settings | self._decided(secret_key=secret_key, fleet_token=fleet_token)

    @property
    def overruled(self) -> list[str]:
        """Names in `settings` without effect, because the demo sets them itself."""
        decided = self._decided(secret_key="", fleet_token="").keys() - _READ
        return sorted(name for name in self.settings if name in decided or name.startswith(_NOT_HERE))

    def _decided(self, *, secret_key: str, fleet_token: str) -> dict[str, str]:
        origins = (self.url("web"), self.url("web").replace(_HOST, "localhost"))
        roots = (str(ROOT / "demo" / "adapters"), self.settings.get("GRAFTWORK_IMPORT_ROOTS", ""))
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
            "GRAFTWORK_IMPORT_ROOTS": ":".join(filter(None, roots)),
            "GRAFTWORK_GATEWAY_HOST": _HOST,
            "GRAFTWORK_GATEWAY_PORT": str(self.ports["gateway"]),
            "GRAFTWORK_GATEWAY_ID": "demo",
            "GRAFTWORK_WAL_DIR": str(self.state / "wal"),
            "GRAFTWORK_CORS_ORIGINS": ",".join(origins),
        }
