"""What crosses between the control plane and the gateway: route entries and usage events.

Standard library only. The control plane publishes one immutable snapshot and, after it, ordered
deltas; a delta sets or removes one entry, named by a path:

    keys/<public id>          KeyRoute
    tenants/<tenant>          TenantRoute
    bases/<base model>        BaseRoute
    adapters/<tenant>/<name>  AdapterRoute
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, Self, cast

from worker_engine.protocol import AdapterRef

ROUTES_SNAPSHOT: Final = "graftwork:routes:snapshot"
"""Redis string: JSON of `RouteTable.to_dict()`."""
ROUTES_DELTAS: Final = "graftwork:routes:deltas"
"""Redis stream, one entry a delta, fields `version` and `change` (JSON of a RouteChange)."""
ROUTES_VERSION: Final = "graftwork:routes:version"
"""Redis string: version of the newest delta or snapshot published."""
USAGE_STREAM: Final = "graftwork:usage"
"""Redis stream, one entry a usage event, field `event` (JSON of a UsageEvent)."""
USAGE_GROUP: Final = "metering"
"""Consumer group of the control plane on `USAGE_STREAM`."""

KEY_PREFIX: Final = "gw"
"""An API key reads `gw_<public id>_<secret>`; only the public id and SHA-256(secret) are stored."""


class WireError(ValueError):
    """A message that does not follow this wire format; the text names what was expected."""


@dataclass(frozen=True, slots=True)
class KeyRoute:
    """An API key. `secret_sha256` is hex; `expires_at` is Unix seconds or None for never."""

    tenant: str
    secret_sha256: str
    project: str = "default"
    expires_at: float | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(**value)


@dataclass(frozen=True, slots=True)
class TenantRoute:
    """A tenant. `cache_salt` is hex and keeps prefix caches apart; `bases` None permits every base."""

    name: str
    cache_salt: str
    bases: tuple[str, ...] | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        bases = value.get("bases")
        return cls(value["name"], value["cache_salt"], None if bases is None else tuple(bases))


@dataclass(frozen=True, slots=True)
class CopyRoute:
    """One copy of a base model on compute: where requests for it go.

    Attributes:
        id: deployment copy id, stands as `endpoint` in usage events.
        kind: backend that speaks to it: `worker` or `openai_http`.
        url: base URL without `/v1`.
    """

    id: str
    kind: str
    url: str


@dataclass(frozen=True, slots=True)
class BaseRoute:
    """A base model and its copies; `served_name` is what the copies call it."""

    served_name: str
    max_model_len: int
    copies: tuple[CopyRoute, ...] = ()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        copies = tuple(CopyRoute(**copy) for copy in value.get("copies", ()))
        return cls(value["served_name"], value["max_model_len"], copies)


@dataclass(frozen=True, slots=True)
class AdapterRoute:
    """A tenant's adapter: its ready versions by number, aliases, and what the bare name means."""

    base: str
    default: int
    versions: Mapping[int, AdapterRef]
    aliases: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        versions = {int(number): AdapterRef.from_dict(ref) for number, ref in value["versions"].items()}
        return cls(value["base"], value["default"], versions, dict(value.get("aliases", {})))


RouteEntry = KeyRoute | TenantRoute | BaseRoute | AdapterRoute
_ENTRY_TYPES: Final[Mapping[str, type[RouteEntry]]] = {
    "keys": KeyRoute,
    "tenants": TenantRoute,
    "bases": BaseRoute,
    "adapters": AdapterRoute,
}


@dataclass(frozen=True, slots=True)
class RouteChange:
    """Sets one entry (or removes it, `entry` None); versions are consecutive integers."""

    version: int
    path: str
    entry: RouteEntry | None

    def to_json(self) -> str:
        entry = None if self.entry is None else asdict(self.entry)
        return json.dumps({"version": self.version, "path": self.path, "entry": entry})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises WireError on anything but a change."""
        try:
            value = json.loads(text)
            kind = value["path"].partition("/")[0]
            entry_type = _ENTRY_TYPES[kind]
            entry = None if value["entry"] is None else entry_type.from_dict(value["entry"])
            return cls(int(value["version"]), value["path"], entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"not a route change: {error!r}") from error


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Everything that the hot path looks up, immutable; a new version is a new object."""

    version: int = 0
    keys: Mapping[str, KeyRoute] = field(default_factory=dict)
    tenants: Mapping[str, TenantRoute] = field(default_factory=dict)
    bases: Mapping[str, BaseRoute] = field(default_factory=dict)
    adapters: Mapping[str, Mapping[str, AdapterRoute]] = field(default_factory=dict)
    """By tenant, then by adapter name."""

    def apply(self, changes: Iterable[RouteChange]) -> RouteTable:
        """A table with `changes` in force; changes at or below this version are skipped.

        Raises:
            WireError: when a version is missing between this table and a change (fetch a snapshot).
        """
        version = self.version
        maps: dict[str, dict[str, Any]] = {}
        for change in changes:
            if change.version <= version:
                continue
            if change.version != version + 1:
                raise WireError(f"route change {change.version} does not follow version {version}")
            kind, _, name = change.path.partition("/")
            entries = maps.setdefault(kind, dict(getattr(self, kind)))
            if kind == "adapters":
                tenant, _, name = name.partition("/")
                entries[tenant] = entries = dict(entries.get(tenant, {}))
            if change.entry is None:
                entries.pop(name, None)
            else:
                entries[name] = change.entry
            version = change.version
        return replace(self, version=version, **maps)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises WireError on anything but a table."""
        try:
            value = json.loads(text)
            return cls(
                version=int(value["version"]),
                keys={name: KeyRoute.from_dict(entry) for name, entry in value["keys"].items()},
                tenants={name: TenantRoute.from_dict(entry) for name, entry in value["tenants"].items()},
                bases={name: BaseRoute.from_dict(entry) for name, entry in value["bases"].items()},
                adapters={
                    tenant: {name: AdapterRoute.from_dict(entry) for name, entry in adapters.items()}
                    for tenant, adapters in value["adapters"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"not a route table: {error!r}") from error


UsageStatus = Literal["ok", "error", "cancelled", "interrupted"]


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """One attempt of one request, as the gateway saw it. Prices are not in it.

    Attributes:
        event_id: UUIDv7; its time part gives the partition day.
        requested_model: what the client wrote; `alias` and `arm` say how it was resolved.
        adapter: engine name, or "" for the base alone.
        backend: kind of the backend; `endpoint` the copy's id.
        estimated: True when the backend reported no usage and the gateway counted instead.
        ttft_ms: from request to first token; None when none came.
        started_at: Unix milliseconds.
    """

    event_id: str
    tenant: str
    project: str
    key_id: str
    request_id: str
    attempt: int
    requested_model: str
    alias: str
    arm: str
    adapter: str
    base_model: str
    backend: str
    endpoint: str
    status: UsageStatus
    error_code: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: bool
    ttft_ms: float | None
    duration_ms: float
    started_at: int
    gateway_id: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises WireError naming missing, unknown or mistyped fields."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise WireError(f"a usage event is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise WireError("a usage event must be an object")
        names = {item.name for item in fields(cls)}
        if wrong := sorted(names ^ set(value)):
            raise WireError(f"a usage event lacks or does not know: {', '.join(wrong)}")
        for item in fields(cls):
            if not isinstance(value[item.name], _EVENT_TYPES[cast(str, item.type)]):
                raise WireError(
                    f"usage event field {item.name} must be {item.type}, got {value[item.name]!r}"
                )
        return cls(**value)


_EVENT_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "UsageStatus": (str,),
}


def uuid7() -> str:
    """A time-ordered UUID (RFC 9562, version 7): 48 bits of Unix milliseconds, then random bits."""
    # Unique, not secret, so it need not pay for a system call; a fork seeds its generator anew.
    noise = random.getrandbits(74)
    milliseconds = time.time_ns() // 1_000_000
    text = f"{milliseconds << 80 | 0x7 << 76 | noise >> 62 << 64 | 0x2 << 62 | noise & (1 << 62) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
