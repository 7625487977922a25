"""The identity of an adapter: its files, digest and engine name, and the reference to fetch it by."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from contracts.errors import ContractError

ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
"""The two files that make an adapter, as PEFT's `save_pretrained` writes them."""
POOLING_FILES: Final = ("1_Pooling/config.json", "modules.json")
"""sentence-transformers' files beside an embedding adapter, which say how its states are pooled. An adapter
with another task has none: such files beside it are not read."""

_SLUG: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
SLUG_PATTERN: Final = re.compile(_SLUG)
"""Tenant and adapter names: 1-63 lower-case letters, digits and inner hyphens (so never `.`, `_`, `@`)."""
_ENGINE_NAME: Final = re.compile(rf"t_({_SLUG})\.a_({_SLUG})\.v([1-9][0-9]{{0,8}})\.([0-9a-f]{{12}})")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def adapter_digest(file_sha256: Mapping[str, str]) -> str:
    """Content identity of an adapter: SHA-256 over `<sha256>  <name>\\n` of its files, sorted by name.

    Args:
        file_sha256: hex SHA-256 of each of `ADAPTER_FILES`, and of those `POOLING_FILES` that an embedding
            adapter has, by file name.
    """
    lines = "".join(f"{file_sha256[name]}  {name}\n" for name in sorted(file_sha256))
    return hashlib.sha256(lines.encode()).hexdigest()


def engine_name(*, tenant: str, adapter: str, version: int, sha256: str) -> str:
    """The immutable name of one adapter version: `t_<tenant>.a_<adapter>.v<n>.<sha12>`."""
    name = f"t_{tenant}.a_{adapter}.v{version}.{sha256[:12]}"
    if _ENGINE_NAME.fullmatch(name) is None:
        raise ContractError(
            f"{name!r} is not an engine name: tenant and adapter must match {_SLUG}, version >= 1"
        )
    return name


@dataclass(frozen=True, slots=True)
class EngineName:
    """The parts of an engine name."""

    tenant: str
    adapter: str
    version: int
    sha12: str

    @classmethod
    def parse(cls, name: str) -> EngineName:
        """Raises ContractError when `name` is not `t_<tenant>.a_<adapter>.v<n>.<sha12>`."""
        match = _ENGINE_NAME.fullmatch(name)
        if match is None:
            raise ContractError(f"{name!r} is not of the form t_<tenant>.a_<adapter>.v<n>.<sha12>")
        tenant, adapter, version, sha12 = match.groups()
        return cls(tenant, adapter, int(version), sha12)


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """Everything that a worker needs to fetch and serve an adapter without calling back.

    Attributes:
        name: engine name, immutable.
        uri: folder that holds `ADAPTER_FILES`: `file:///path/` or `s3://bucket/prefix/`.
        sha256: `adapter_digest` of the files; checked after every fetch.
        rank: largest LoRA rank in the adapter.
        traits: sorted values of `contracts.capabilities.traits.Trait` that a copy must serve. Texts, since a
            newer control plane may know more of them.
    """

    name: str
    uri: str
    sha256: str
    rank: int
    traits: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what a worker gets. It reads the traits from the files, and older ones refuse the field."""
        return {"name": self.name, "uri": self.uri, "sha256": self.sha256, "rank": self.rank}

    @classmethod
    def from_dict(cls, value: object) -> AdapterRef:
        """Raises ContractError naming the field that is missing, unknown or malformed."""
        if not isinstance(value, Mapping):
            raise ContractError(f"adapter must be an object, got {type(value).__name__}")
        if unknown := sorted(set(value) - {"name", "uri", "sha256", "rank"}):
            raise ContractError(f"adapter.{unknown[0]} is not a known field")
        texts: dict[str, str] = {}
        for name in ("name", "uri", "sha256"):
            text = value.get(name)
            if not isinstance(text, str) or not text:
                raise ContractError(f"adapter.{name} must be a non-empty string, got {text!r}")
            texts[name] = text
        rank = value.get("rank")
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise ContractError(f"adapter.rank must be a positive integer, got {rank!r}")
        if _SHA256.fullmatch(texts["sha256"]) is None:
            raise ContractError("adapter.sha256 must be 64 lower-case hex digits")
        if EngineName.parse(texts["name"]).sha12 != texts["sha256"][:12]:
            raise ContractError("adapter.name does not end with the first 12 digits of adapter.sha256")
        return cls(texts["name"], texts["uri"], texts["sha256"], rank)


MAX_MIX: Final = 8
"""Most adapters in one request."""
_MAX_MIX_WEIGHT: Final = 100.0


@dataclass(frozen=True, slots=True)
class AdapterMix:
    """Several weighted adapters served as one: the sum of their weighted changes to the base.

    The same as PEFT's `add_weighted_adapter(combination_type="cat")`.

    Attributes:
        members: sorted by content, so that the order in a request has no effect.
    """

    members: tuple[tuple[AdapterRef, float], ...]

    @property
    def sha256(self) -> str:
        """Content identity: a digest of the members' digests and weights."""
        lines = "".join(f"{ref.sha256} {weight!r}\n" for ref, weight in self.members)
        return hashlib.sha256(f"mix\n{lines}".encode()).hexdigest()

    @classmethod
    def from_list(cls, value: object) -> AdapterMix:
        """Reads `[{"adapter": ..., "weight": ...}, ...]`; a weight left out is 1.

        Raises ContractError naming the field that is missing, unknown or malformed.
        """
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MAX_MIX:
            raise ContractError(f"adapters must be a list of 1 to {MAX_MIX} objects")
        members = [_member(f"adapters[{index}]", item) for index, item in enumerate(value)]
        if len({ref.sha256 for ref, _ in members}) < len(members):
            raise ContractError("adapters names the same adapter twice: add up its weights")
        return cls(tuple(sorted(members, key=lambda member: member[0].sha256)))


def _member(where: str, value: object) -> tuple[AdapterRef, float]:
    if not isinstance(value, Mapping) or "adapter" not in value:
        raise ContractError(f"{where} must be an object with adapter and weight")
    if unknown := sorted(set(value) - {"adapter", "weight"}):
        raise ContractError(f"{where}.{unknown[0]} is not a known field")
    weight = value.get("weight", 1.0)
    right = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not right or not abs(weight) <= _MAX_MIX_WEIGHT:
        raise ContractError(f"{where}.weight must be a number up to {_MAX_MIX_WEIGHT:g}, got {weight!r}")
    try:
        return AdapterRef.from_dict(value["adapter"]), float(weight)
    except ContractError as error:
        raise ContractError(f"{where}.{error}") from error
