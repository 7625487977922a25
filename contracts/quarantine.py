"""Adapters that every gateway holds back, because engines died while they ran them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Self

from contracts.errors import ContractError
from contracts.known_fields import known_fields

QUARANTINES: Final = "graftwork:quarantines"
"""Redis hash: by the adapter's engine name, JSON of its last Quarantine."""
_DEATHS: Final = "graftwork:engine_deaths:"


def engine_deaths_key(base: str) -> str:
    """Return the key of a Redis string: JSON list of the recent deaths of a base model's engines."""
    return _DEATHS + base


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The last time that an adapter was held back.

    Attributes:
        base: name of the base model; `adapter` the engine name.
        at: Unix seconds of Redis's clock. Earlier deaths no longer count against the adapter.
        until: Unix seconds; gateways refuse the adapter's requests before.
        times: how often it was held back in a row; 0 once an operator has released it.
        copies: ids of the copies whose engines died.
    """

    base: str
    adapter: str
    at: float
    until: float
    times: int
    copies: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a quarantine; unknown fields are ignored. Raises ContractError."""
        try:
            value = known_fields(cls, json.loads(text))
            return cls(
                str(value["base"]),
                str(value["adapter"]),
                float(value["at"]),
                float(value["until"]),
                int(value["times"]),
                tuple(map(str, value["copies"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"not a quarantine: {error}") from error
