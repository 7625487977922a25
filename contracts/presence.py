"""The status that each gateway process publishes in Redis."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from contracts.errors import ContractError
from contracts.known_fields import known_fields


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The latest status of one gateway process.

    Attributes:
        at: Redis's Unix seconds of the status; started_at: the gateway's own Unix seconds at its start.
        id: the id in usage events; several processes of a host share it.
        reasons: why requests would be refused; empty where `ready`.
        routes_age: seconds since Redis last confirmed its route table.
        in_flight: requests at copies now; held: requests that wait for a first copy.
        backlog_bytes: unshipped bytes of its usage log.
        disk_free, disk_total: bytes of the disk that holds the log.
    """

    at: float
    id: str
    pid: int
    started_at: float
    ready: bool
    reasons: tuple[str, ...]
    routes_version: int
    routes_age: float
    in_flight: int
    held: int
    backlog_bytes: int
    disk_free: int
    disk_total: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a status; unknown fields are ignored. Raises ContractError."""
        try:
            value = known_fields(cls, json.loads(text))
            return cls(**{**value, "reasons": tuple(str(reason) for reason in value["reasons"])})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"not a gateway's word: {error}") from error
