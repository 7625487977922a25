"""Short-lived bearer tokens for the OpenAI path of SageMaker endpoints.

A token is a presigned request for the action CallWithBearerToken, in base64. It only identifies the caller:
the endpoint checks the caller's permissions itself.
"""

from __future__ import annotations

import base64
import time
from typing import Final

from gateway.http.aws.sigv4 import Credentials, Signer

PREFIX: Final = "sagemaker-api-key-"
EXPIRES_SECONDS: Final = 3600
"""SageMaker allows twelve hours; a token that leaks should not last that long."""
_RENEW_SECONDS: Final = 600
_URL: Final = "https://sagemaker.amazonaws.com/?Action=CallWithBearerToken"


class BearerTokens:
    """Tokens for one region, renewed well before they expire or when the credentials change."""

    def __init__(self, region: str) -> None:
        self._signer = Signer("sagemaker", region)
        self._token = ""
        self._made = 0.0
        self._made_with: Credentials | None = None

    def token(self, credentials: Credentials, *, now: float | None = None) -> str:
        """Return a token. `now` is Unix seconds; None reads the clock."""
        now = time.time() if now is None else now
        if credentials != self._made_with or not 0 <= now - self._made < _RENEW_SECONDS:
            url = self._signer.presigned("POST", _URL, credentials, expires=EXPIRES_SECONDS, now=now)
            text = url.removeprefix("https://") + "&Version=1"
            self._token = PREFIX + base64.b64encode(text.encode()).decode()
            self._made, self._made_with = now, credentials
        return self._token
