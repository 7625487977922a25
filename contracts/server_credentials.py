"""Credentials of a copy of kind `openai_http`: a bearer token and fixed headers.

The control plane stores them sealed under its own keys. For gateways it seals them anew in the route table,
under a key that derives from the fleet token, so that neither the database nor Redis has them in clear.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

CREDENTIALS_INFO: Final = b"graftwork server credentials"
"""A route's credentials are base64 of AES-SIV (RFC 5297) over `ServerCredentials.to_json`, bound to the
copy's id. The key is 64 bytes of HKDF-SHA256 from the fleet token with this info. Equal credentials give
equal text, so that publishing again changes no route."""


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """Credentials that a server demands with each request.

    Attributes:
        token: bearer token; "" for none.
        headers: further headers by lower-case name.
    """

    token: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.token or self.headers)

    def request_headers(self, default_token: str = "") -> dict[str, str]:
        """Return the headers to send; `default_token` is for servers without credentials of their own."""
        token = self.token if self else default_token
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
