"""The part of the route table that says what an API key opens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from contracts.known_fields import known_fields

KEY_PREFIX: Final = "gw"
"""An API key reads `gw_<public id>_<secret>`. Only the public id and SHA-256(secret) are stored."""
ENDPOINTS: Final = (
    "chat/completions",
    "completions",
    "embeddings",
    "score",
    "rerank",
    "classify",
    "responses",
    "models",
)
"""Endpoints that a key can be restricted to: paths below `/v1/`; `models` includes its sub-paths."""


@dataclass(frozen=True, slots=True)
class KeyScope:
    """Restrictions of a key; None in a field is no restriction.

    Attributes:
        models: names that may be called: `<base>`, `<adapter>` (with all its aliases and versions),
            `<adapter>@<alias>` or `<adapter>@v<n>` (that name alone).
        endpoints: some of ENDPOINTS.
        networks: CIDRs of IPv4 and IPv6; the client's address lies in one of them.
    """

    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OldSecret:
    """The secret that a rotation replaced: hex SHA-256, accepted until a Unix time."""

    sha256: str
    until: float


@dataclass(frozen=True, slots=True)
class KeyRoute:
    """An API key. `secret_sha256` is hex; `expires_at` is Unix seconds or None for never.

    Attributes:
        old: the secret before the last rotation, while it is still accepted.
        scope: None for a key that opens everything of its tenant.
    """

    tenant: str
    secret_sha256: str
    project: str = "default"
    expires_at: float | None = None
    old: OldSecret | None = None
    scope: KeyScope | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self | None:
        """Return None for a key with a restriction that is unknown here, so that the gateway refuses it.

        A field that a newer control plane adds must therefore be null where it restricts nothing.
        """
        scope, old = value.get("scope"), value.get("old")
        if _has_unknown(cls, value) or (scope is not None and _has_unknown(KeyScope, scope)):
            return None
        return cls(
            **{
                **known_fields(cls, value),
                "old": None if old is None else OldSecret(**known_fields(OldSecret, old)),
                "scope": None if scope is None else _scope(known_fields(KeyScope, scope)),
            }
        )


def _scope(value: Mapping[str, Any]) -> KeyScope:
    return KeyScope(**{name: None if given is None else tuple(given) for name, given in value.items()})


def _has_unknown(cls: type[Any], value: Mapping[str, Any]) -> bool:
    names = {item.name for item in fields(cls)}
    return any(given is not None and name not in names for name, given in value.items())
