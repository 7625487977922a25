"""Sealed credentials of servers, as columns of targets and copies."""

from __future__ import annotations

import base64

from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.server_credentials import CREDENTIALS_INFO, ServerCredentials
from controlplane.platform.sealing import seal, unseal


def credentials_column(credentials: ServerCredentials, *, place: str) -> str:
    """Return the sealed text for the database; "" for no credentials."""
    return seal(credentials.to_json(), place=place) if credentials else ""


def credentials_of(column: str, *, place: str) -> ServerCredentials:
    """Open a column. Raises UnsealError."""
    return ServerCredentials.from_json(unseal(column, place=place)) if column else ServerCredentials()


def credentials_seal(credentials: ServerCredentials, *, fleet_token: str, copy_id: str) -> str:
    """Return the credentials sealed for gateways, for one copy's route; "" for none."""
    if not credentials:
        return ""
    key = HKDF(SHA256(), 64, salt=None, info=CREDENTIALS_INFO).derive(fleet_token.encode())
    sealed = AESSIV(key).encrypt(credentials.to_json().encode(), [copy_id.encode()])
    return base64.b64encode(sealed).decode()
