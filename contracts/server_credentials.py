"""Credentials of a copy of kind `openai_http`: a bearer token and fixed headers.

The control plane stores them sealed under its own keys. For gateways it seals them anew in the route table,
under a key that derives from the fleet token, so that neither the database nor Redis has them in clear.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_INFO: Final = b"graftwork server credentials"


class CredentialsError(ValueError):
    """Sealed credentials that this fleet token does not open, or that belong to another copy."""


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """What a server wants with each request.

    Attributes:
        token: bearer token; "" for none.
        headers: further headers by lower-case name.
    """

    token: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.token or self.headers)

    def request_headers(self, default_token: str = "") -> dict[str, str]:
        """Return the headers to send; `default_token` is for servers without a token of their own."""
        token = self.token or default_token
        return {**({"authorization": f"Bearer {token}"} if token else {}), **self.headers}

    def to_json(self) -> str:
        return json.dumps({"token": self.token, "headers": dict(self.headers)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read `to_json`'s text; "" is no credentials."""
        if not text:
            return cls()
        value = json.loads(text)
        return cls(value["token"], value["headers"])


def credentials_seal(credentials: ServerCredentials, *, fleet_token: str, copy_id: str) -> str:
    """Return the credentials sealed for one copy's route; "" for none.

    Equal credentials give equal text (AES-SIV, RFC 5297), so that publishing again changes no route.
    """
    if not credentials:
        return ""
    sealed = _cipher(fleet_token).encrypt(credentials.to_json().encode(), [copy_id.encode()])
    return base64.b64encode(sealed).decode()


def credentials_open(sealed: str, *, fleet_token: str, copy_id: str) -> ServerCredentials:
    """Open a copy's credentials. Raises CredentialsError."""
    if not sealed:
        return ServerCredentials()
    try:
        text = _cipher(fleet_token).decrypt(base64.b64decode(sealed), [copy_id.encode()])
        return ServerCredentials.from_json(text.decode())
    except (InvalidTag, ValueError, KeyError, TypeError) as error:
        raise CredentialsError(
            f"the credentials of {copy_id} are sealed for another fleet token or copy"
        ) from error


def _cipher(fleet_token: str) -> AESSIV:
    return AESSIV(HKDF(SHA256(), 64, salt=None, info=_INFO).derive(fleet_token.encode()))
