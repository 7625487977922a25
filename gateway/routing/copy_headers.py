"""Headers that authorize calls of copies: the fleet's token, or a server's own credentials."""

from __future__ import annotations

import base64
import logging

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.base_routes import CopyRoute
from contracts.server_credentials import CREDENTIALS_INFO, ServerCredentials
from gateway.errors import UpstreamUnreachable

logger = logging.getLogger(__name__)


class CredentialsError(ValueError):
    """Sealed credentials that this fleet token does not open, or that belong to another copy."""


class CopyHeaders:
    """Opens the credentials in routes, once for each version of a copy's route.

    Args:
        default_key: bearer token for servers without one of their own; "" for none.
    """

    def __init__(self, fleet_token: str, default_key: str) -> None:
        self._fleet_token, self._default_key = fleet_token, default_key
        self._opened: dict[str, tuple[str, dict[str, str]]] = {}
        self._failed: dict[str, str] = {}

    def for_copy(self, copy: CopyRoute) -> dict[str, str]:
        """Return the headers for a copy of kind `worker` or `openai_http`.

        Raises:
            UpstreamUnreachable: its credentials are sealed for another fleet token.
        """
        if copy.kind == "worker":
            return {"authorization": f"Bearer {self._fleet_token}"}
        known = self._opened.get(copy.id)
        if known is None or known[0] != copy.credentials:
            known = self._opened[copy.id] = copy.credentials, self._open(copy)
        return known[1]

    def _open(self, copy: CopyRoute) -> dict[str, str]:
        try:
            opened = credentials_open(copy.credentials, fleet_token=self._fleet_token, copy_id=copy.id)
        except CredentialsError as error:
            if self._failed.get(copy.id) != copy.credentials:
                self._failed[copy.id] = copy.credentials
                logger.error("%s: give gateways and control plane the same GRAFTWORK_FLEET_TOKEN", error)
            raise UpstreamUnreachable("No copy of this model answers at this moment; retry later.") from error
        return opened.request_headers(self._default_key)


def credentials_open(sealed: str, *, fleet_token: str, copy_id: str) -> ServerCredentials:
    """Open the credentials in a copy's route. Raises CredentialsError."""
    if not sealed:
        return ServerCredentials()
    key = HKDF(SHA256(), 64, salt=None, info=CREDENTIALS_INFO).derive(fleet_token.encode())
    try:
        text = AESSIV(key).decrypt(base64.b64decode(sealed), [copy_id.encode()])
        return ServerCredentials.from_json(text.decode())
    except (InvalidTag, ValueError, KeyError, TypeError) as error:
        raise CredentialsError(
            f"the credentials of {copy_id} are sealed for another fleet token or copy"
        ) from error
