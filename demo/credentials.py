"""Secrets of one demo, created once and readable only by their owner."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from demo.errors import DemoError


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """A demo tenant with its login and its committed adapters."""

    slug: str
    name: str
    login: str
    adapters: tuple[str, ...]


TENANTS: Final = (
    TenantPlan("acme", "Acme Harbour", "ada@acme.example", ("pirate", "strict-json", "support-triage")),
    TenantPlan("globex", "Globex Theatre", "grace@globex.example", ("shakespeare", "three-steps")),
)
OPERATOR: Final = "operator@graftwork.example"
"""Login of the staff user: price books, fleet, admin."""


def _password() -> str:
    """Return a random password with a word in front: all-digit passwords are refused, one in 300 would be."""
    return f"demo-{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Secrets that stay the same across starts; `api_keys` is by tenant and filled by `demo.seed`."""

    secret_key: str = field(default_factory=lambda: secrets.token_hex(32))
    fleet_token: str = field(default_factory=lambda: secrets.token_hex(24))
    passwords: Mapping[str, str] = field(
        default_factory=lambda: {
            login: _password() for login in (*(tenant.login for tenant in TENANTS), OPERATOR)
        }
    )
    api_keys: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `path`, or create it with fresh secrets."""
        if not path.exists():
            fresh = cls()
            fresh.save(path)
            return fresh
        try:
            return cls(**json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise DemoError(f"{path} is damaged ({error}): delete {path.parent} to start afresh") from error

    def save(self, path: Path) -> None:
        write_private(path, asdict(self))


def write_private(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON atomically to a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
    fresh.replace(path)
