"""Sealed credentials of servers, as columns of targets and copies."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.server_credentials import CREDENTIALS_INFO, ServerCredentials
from controlplane.errors import InvalidInputError, UnsealError
from controlplane.platform.sealing import seal, unseal


def credentials_column(credentials: ServerCredentials, *, place: str) -> str:
    """Return the sealed text for the database; "" for no credentials."""
    return seal(credentials.to_json(), place=place) if credentials else ""


def credentials_of(column: str, *, place: str) -> ServerCredentials:
    """Open a column. Raises UnsealError."""
    return ServerCredentials.from_json(unseal(column, place=place)) if column else ServerCredentials()


def credentials_changed(
    column: str, *, place: str, token: str | None, headers: Mapping[str, str] | None
) -> ServerCredentials:
    """Return the credentials of a column with the given values changed; None keeps one.

    Raises:
        InvalidInputError: the column cannot be opened, and one of its values would be kept.
    """
    if token is not None and headers is not None:
        return ServerCredentials(token, headers)
    try:
        known = credentials_of(column, place=place)
    except UnsealError as error:
        missing = "token" if token is None else "headers"
        text = f"{error}: state both token and headers, also an empty one"
        raise InvalidInputError(text, field=missing) from error
    return ServerCredentials(
        known.token if token is None else token, known.headers if headers is None else headers
    )


def credentials_seal(credentials: ServerCredentials, *, fleet_token: str, copy_id: str) -> str:
    """Return the credentials sealed for gateways, for one copy's route; "" for none."""
    if not credentials:
        return ""
    key = HKDF(SHA256(), 64, salt=None, info=CREDENTIALS_INFO).derive(fleet_token.encode())
    sealed = AESSIV(key).encrypt(credentials.to_json().encode(), [copy_id.encode()])
    return base64.b64encode(sealed).decode()
