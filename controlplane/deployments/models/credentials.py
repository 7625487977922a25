"""Sealed credentials of servers, as columns of targets and copies."""

from __future__ import annotations

from contracts.server_credentials import ServerCredentials
from controlplane.platform.sealing import seal, unseal


def credentials_column(credentials: ServerCredentials, *, place: str) -> str:
    """Return the sealed text for the database; "" for no credentials."""
    return seal(credentials.to_json(), place=place) if credentials else ""


def credentials_of(column: str, *, place: str) -> ServerCredentials:
    """Open a column. Raises UnsealError."""
    return ServerCredentials.from_json(unseal(column, place=place)) if column else ServerCredentials()
