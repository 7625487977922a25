"""The route table: everything that gateways know about tenants, keys, base models and adapters.

The control plane publishes one immutable snapshot and, after it, ordered deltas. A delta sets or removes
one entry, named by a path:

    keys/<public id>          KeyRoute
    tenants/<tenant>          TenantRoute
    bases/<base model>        BaseRoute
    adapters/<tenant>/<name>  AdapterRoute
    limits/<scope id>         LimitsRoute
    rates/<base model>[/<tenant>[/<adapter>]]  RateRoute

A reader ignores kinds of entries, and fields, that it does not know: a newer control plane may talk to an
older gateway. Keys are the exception: an unknown field that is not null refuses the key.
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
    """A tenant.

    Attributes:
        cache_salt: hex; separates the tenants' prefix caches.
        bases: base models that the tenant may call; None permits all.
        suspended: True refuses every call.
        prompt_key: public key (X25519, base64) that seals logged prompts; "" while prompts are not logged.
    """

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
    """A tenant's adapter: its ready versions by number, and the versions behind its names.

    Attributes:
        default: version behind the bare name.
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
        traits = {int(number): tuple(items) for number, items in value.get("traits", {}).items()}
        versions = {int(number): AdapterRef.from_dict(ref) for number, ref in value["versions"].items()}
        return cls(
            value["base"],
            value["default"],
            {number: replace(ref, traits=traits.get(number, ())) for number, ref in versions.items()},
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


def entry_to_dict(entry: RouteEntry) -> dict[str, Any]:
    """Return the entry's JSON.

    Traits of adapters are beside their references, in `traits` by version: older gateways refuse unknown
    fields of a reference, and ignore those of a route.
    """
    value = asdict(entry)
    if isinstance(entry, AdapterRoute):
        traits = {number: ref.pop("traits") for number, ref in value["versions"].items()}
        value["traits"] = {number: items for number, items in traits.items() if items}
    return value


def _entry(value: Mapping[str, Any]) -> tuple[str, RouteEntry | None]:
    """Parse `{"path": ..., "entry": ...}` into (path, entry); an unknown kind of entry becomes None."""
    path: str = value["path"]
    entry_type = _ENTRY_TYPES.get(path.partition("/")[0])
    found = value["entry"]
    return path, None if found is None or entry_type is None else entry_type.from_dict(found)


def entry_from_json(line: str | bytes) -> tuple[str, RouteEntry | None]:
    """Parse a snapshot's line into (path, entry); entry is None for an unknown kind.

    Raises ContractError if the line is malformed.
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
    """A change that sets one entry, or removes it (`entry` None); versions are consecutive integers."""

    version: int
    path: str
    entry: RouteEntry | None

    def to_json(self) -> str:
        entry = None if self.entry is None else entry_to_dict(self.entry)
        return json.dumps({"version": self.version, "path": self.path, "entry": entry})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a change. Raises ContractError if it is malformed."""
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
        """Return a table with `changes` applied; changes at or below this version are skipped.

        Raises:
            ContractError: when a version is missing between this table and a change (fetch a snapshot).
        """
        draft = RouteDraft(self)
        for change in changes:
            draft.apply(change)
        return draft.table()

    def entry(self, path: str) -> RouteEntry | None:
        """Return the entry at `path`, or None."""
        kind, _, name = path.partition("/")
        entries = getattr(self, kind) if kind in _ENTRY_TYPES else {}
        if kind == "adapters":
            tenant, _, name = name.partition("/")
            entries = entries.get(tenant, {})
        return cast(RouteEntry | None, entries.get(name))

    def snapshot(self) -> str:
        """Serialize the table line by line, so that a reader can parse it in pieces.

        The head comes first and again last: if both are equal, all pieces are of one snapshot.
        """
        head = json.dumps({"version": self.version})
        lines = (json.dumps({"path": path, "entry": entry_to_dict(entry)}) for path, entry in self.entries())
        return "\n".join([head, *lines, head, ""])

    def entries(self) -> Iterator[tuple[str, RouteEntry]]:
        """Yield every entry with its path."""
        for kind in _ENTRY_TYPES:
            if kind != "adapters":
                yield from ((f"{kind}/{name}", entry) for name, entry in getattr(self, kind).items())
        for tenant, adapters in self.adapters.items():
            yield from ((f"adapters/{tenant}/{name}", entry) for name, entry in adapters.items())

    @classmethod
    def from_snapshot(cls, text: str | bytes) -> RouteTable:
        """Parse a snapshot. Raises ContractError if it is malformed or incomplete."""
        head, *lines = text.splitlines() or [""]
        if not lines or lines.pop() != head:
            raise ContractError("the snapshot is torn: it does not end as it begins")
        draft = RouteDraft(cls(version=snapshot_version(head)))
        for line in lines:
            draft.set(*entry_from_json(line))
        return draft.table()


def snapshot_version(head: str | bytes) -> int:
    """Return the version in a snapshot's first or last line. Raises ContractError if it is malformed."""
    try:
        return int(json.loads(head)["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise ContractError(f"not a snapshot's head: {error!r}") from error


class RouteDraft:
    """A mutable copy of a table; each map is copied once, at its first change."""

    def __init__(self, table: RouteTable) -> None:
        self.version = table.version
        self._table = table
        self._maps: dict[str, dict[str, Any]] = {}
        self._tenants: set[str] = set()

    def apply(self, change: RouteChange) -> None:
        """Apply a change, unless the table has it already.

        Raises:
            ContractError: a version is missing between the table and the change.
        """
        if change.version > self.version + 1:
            raise ContractError(f"route change {change.version} does not follow version {self.version}")
        if change.version == self.version + 1:
            self.set(change.path, change.entry)
            self.version = change.version

    def set(self, path: str, entry: RouteEntry | None) -> None:
        """Set the entry at `path`; None removes it. An unknown kind is ignored."""
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
        """Return the changed table; the draft must not be used afterwards."""
        return replace(self._table, version=self.version, **self._maps)
