"""The route table: everything that gateways know about tenants, keys, base models and adapters.

The control plane publishes one immutable snapshot and, after it, ordered deltas. A delta sets or removes
one entry, named by a path:

    keys/<public id>          KeyRoute
    tenants/<tenant>          TenantRoute
    bases/<base model>        BaseRoute
    adapters/<tenant>/<name>  AdapterRoute
    limits/<scope id>         LimitsRoute
    rates/<base model>[/<tenant>[/<adapter>]]  RateRoute

A reader passes over entries of a kind, and fields, that it does not know: a newer control plane may
speak to an older gateway. Of keys alone an unknown field that is not null refuses the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self, cast

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute
from contracts.errors import ContractError
from contracts.keys import KeyRoute
from contracts.limits import LimitsRoute, RateRoute


@dataclass(frozen=True, slots=True)
class TenantRoute:
    """A tenant. `cache_salt` is hex and keeps prefix caches apart; `bases` None permits every base; of one
    that is `suspended` every call is refused. `prompt_key` (X25519, base64) is set while it keeps prompts."""

    name: str
    cache_salt: str
    bases: tuple[str, ...] | None = None
    suspended: bool = False
    prompt_key: str = ""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        bases = value.get("bases")
        suspended = bool(value.get("suspended", False))
        bases = None if bases is None else tuple(bases)
        return cls(value["name"], value["cache_salt"], bases, suspended, value.get("prompt_key", ""))


@dataclass(frozen=True, slots=True)
class AdapterRoute:
    """A tenant's adapter: its ready versions by number, and what its names mean.

    Attributes:
        default: version that the bare name means.
        aliases: version by alias; of a split alias, the version that stays when the split ends.
        splits: (version, percent) of each arm by alias, for aliases that are split; percents add up to 100.
        fallbacks: by alias ("" is the bare name) the models to serve instead, in order, when no copy can.
        created: Unix seconds of the adapter's registration; 0 in entries of an older control plane.
        aliases_created: Unix seconds at which each alias was made, where that is recorded.
    """

    base: str
    default: int
    versions: Mapping[int, AdapterRef]
    aliases: Mapping[str, int] = field(default_factory=dict)
    splits: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    created: int = 0
    aliases_created: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            value["base"],
            value["default"],
            {int(number): AdapterRef.from_dict(ref) for number, ref in value["versions"].items()},
            dict(value.get("aliases", {})),
            {
                alias: tuple((int(number), int(percent)) for number, percent in arms)
                for alias, arms in value.get("splits", {}).items()
            },
            {alias: tuple(models) for alias, models in value.get("fallbacks", {}).items()},
            value.get("created", 0),
            dict(value.get("aliases_created", {})),
        )


RouteEntry = KeyRoute | TenantRoute | BaseRoute | AdapterRoute | LimitsRoute | RateRoute
_ENTRY_TYPES: Final[Mapping[str, type[RouteEntry]]] = {
    "keys": KeyRoute,
    "tenants": TenantRoute,
    "bases": BaseRoute,
    "adapters": AdapterRoute,
    "limits": LimitsRoute,
    "rates": RateRoute,
}


def _entry(value: Mapping[str, Any]) -> tuple[str, RouteEntry | None]:
    """(path, entry) of `{"path": ..., "entry": ...}`; None also for an entry of a kind unknown here."""
    path: str = value["path"]
    entry_type = _ENTRY_TYPES.get(path.partition("/")[0])
    found = value["entry"]
    return path, None if found is None or entry_type is None else entry_type.from_dict(found)


def entry_from_json(line: str | bytes) -> tuple[str, RouteEntry | None]:
    """(path, entry) of a snapshot's line; None for a kind that is unknown here.

    Raises ContractError on anything else.
    """
    try:
        value = json.loads(line)
        if value["entry"] is None:
            raise ContractError(f"a snapshot has an empty entry at {value['path']}")
        return _entry(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ContractError(f"not a route entry: {error!r}") from error


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
        """Raises ContractError on anything but a change."""
        try:
            value = json.loads(text)
            return cls(int(value["version"]), *_entry(value))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"not a route change: {error!r}") from error


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Everything that the hot path looks up, immutable; a new version is a new object."""

    version: int = 0
    keys: Mapping[str, KeyRoute] = field(default_factory=dict)
    tenants: Mapping[str, TenantRoute] = field(default_factory=dict)
    bases: Mapping[str, BaseRoute] = field(default_factory=dict)
    adapters: Mapping[str, Mapping[str, AdapterRoute]] = field(default_factory=dict)
    """By tenant, then by adapter name."""
    limits: Mapping[str, LimitsRoute] = field(default_factory=dict)
    """By scope id."""
    rates: Mapping[str, RateRoute] = field(default_factory=dict)
    """By `<base model>`, or by `<base model>/<tenant>/<adapter>` where an adapter has its own."""

    def apply(self, changes: Iterable[RouteChange]) -> RouteTable:
        """A table with `changes` in force; changes at or below this version are skipped.

        Raises:
            ContractError: when a version is missing between this table and a change (fetch a snapshot).
        """
        draft = RouteDraft(self)
        for change in changes:
            draft.apply(change)
        return draft.table()

    def entry(self, path: str) -> RouteEntry | None:
        """What is under `path`, if anything."""
        kind, _, name = path.partition("/")
        entries = getattr(self, kind) if kind in _ENTRY_TYPES else {}
        if kind == "adapters":
            tenant, _, name = name.partition("/")
            entries = entries.get(tenant, {})
        return cast(RouteEntry | None, entries.get(name))

    def snapshot(self) -> str:
        """The table as lines, so that a reader can take it in piece by piece: a head, an entry a line, and
        the head again, by which a reader knows that all pieces were of one snapshot."""
        head = json.dumps({"version": self.version})
        lines = (json.dumps({"path": path, "entry": asdict(entry)}) for path, entry in self.entries())
        return "\n".join([head, *lines, head, ""])

    def entries(self) -> Iterator[tuple[str, RouteEntry]]:
        """Every entry under its path."""
        for kind in _ENTRY_TYPES:
            if kind != "adapters":
                yield from ((f"{kind}/{name}", entry) for name, entry in getattr(self, kind).items())
        for tenant, adapters in self.adapters.items():
            yield from ((f"adapters/{tenant}/{name}", entry) for name, entry in adapters.items())

    @classmethod
    def from_snapshot(cls, text: str | bytes) -> RouteTable:
        """Raises ContractError on anything but a whole snapshot."""
        head, *lines = text.splitlines() or [""]
        if not lines or lines.pop() != head:
            raise ContractError("the snapshot is torn: it does not end as it begins")
        draft = RouteDraft(cls(version=snapshot_version(head)))
        for line in lines:
            draft.set(*entry_from_json(line))
        return draft.table()


def snapshot_version(head: str | bytes) -> int:
    """Version in a snapshot's first and last line. Raises ContractError on anything else."""
    try:
        return int(json.loads(head)["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise ContractError(f"not a snapshot's head: {error!r}") from error


class RouteDraft:
    """A table in the making: each map of the one it begins from is copied once, when it first changes."""

    def __init__(self, table: RouteTable) -> None:
        self.version = table.version
        self._table = table
        self._maps: dict[str, dict[str, Any]] = {}
        self._tenants: set[str] = set()

    def apply(self, change: RouteChange) -> None:
        """Puts a change in force, unless the table has it already.

        Raises:
            ContractError: a version is missing between the table and the change.
        """
        if change.version > self.version + 1:
            raise ContractError(f"route change {change.version} does not follow version {self.version}")
        if change.version == self.version + 1:
            self.set(change.path, change.entry)
            self.version = change.version

    def set(self, path: str, entry: RouteEntry | None) -> None:
        """Puts `entry` under `path`; None removes what is there."""
        kind, _, name = path.partition("/")
        if kind not in _ENTRY_TYPES:
            return
        entries = self._maps.get(kind)
        if entries is None:
            entries = self._maps[kind] = dict(getattr(self._table, kind))
        if kind == "adapters":
            tenant, _, name = name.partition("/")
            if tenant not in self._tenants:
                self._tenants.add(tenant)
                entries[tenant] = dict(entries.get(tenant, {}))
            entries = entries[tenant]
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry

    def table(self) -> RouteTable:
        """The table with the changes in force; the draft must not be used afterwards."""
        return replace(self._table, version=self.version, **self._maps)
