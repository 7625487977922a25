"""Verifies signatures by botocore's own signing code, independent of the gateway's."""

from __future__ import annotations

import base64
import binascii
import calendar
import hashlib
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from sagemaker_local.errors import AccessRefused

KEY_PREFIX: Final = "sagemaker-api-key-"
MAX_TOKEN_SECONDS: Final = 43_200
CLOCK_SECONDS: Final = 300
"""Largest deviation of a caller's clock."""
SAGEMAKER: Final = "sagemaker"
S3: Final = "s3"
_GLOBAL: Final = frozenset({"iam", "sts", "s3", "pricing", "savingsplans"})
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request, "
    r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class AccessKey:
    """Credentials that the local account knows."""

    access_key: str
    secret_key: str
    session_token: str | None = None


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The signed parts of a request. `url` has the path and query as they were sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class Account:
    """The known access keys and the region."""

    def __init__(self, keys: Sequence[AccessKey], region: str) -> None:
        self._keys = {key.access_key: key for key in keys}
        self.region = region

    def check(self, request: SignedRequest, service: str = SAGEMAKER) -> None:
        """Raise AccessRefused unless the request is signed for `service`, in its headers or its query."""
        if "Authorization" not in request.headers and "X-Amz-Signature=" in request.url:
            return self._check_presigned(request, service)
        text = request.headers.get("Authorization")
        if text is None:
            raise AccessRefused("MissingAuthenticationTokenException", "Missing Authentication Token")
        match = _AUTHORIZATION.fullmatch(text)
        timestamp = request.headers.get("X-Amz-Date", "")
        if match is None or not timestamp.startswith(match[2]):
            raise AccessRefused(
                "IncompleteSignatureException", f"Authorization cannot be read: {text[:80]!r}"
            )
        access_key, _, region, scope, names, given = match.groups()
        key = self._key(access_key, request.headers.get("X-Amz-Security-Token"))
        self._scope(region, scope, service)
        if abs(time.time() - _unix(timestamp)) > CLOCK_SECONDS:
            raise AccessRefused("InvalidSignatureException", f"Signature expired: {timestamp}")
        if not {"host", "x-amz-date"} <= set(names.split(";")):
            raise AccessRefused("IncompleteSignatureException", "host and x-amz-date must be signed")
        _check_body(request)
        signed = {name: request.headers.get(name, "") for name in names.split(";")}
        theirs = AWSRequest(method=request.method, url=request.url, headers=signed, data=request.body)
        theirs.context["timestamp"] = timestamp
        kind = S3SigV4Auth if service == S3 else SigV4Auth
        _check_signature(kind(_credentials(key), service, region), theirs, given)
        return None

    def _check_presigned(self, request: SignedRequest, service: str) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.url).query, True).items()}
        needed = {"X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders"}
        if service != S3 or not needed <= set(query):
            raise AccessRefused("IncompleteSignatureException", f"{service} needs a signature in the headers")
        access_key, _, region, scope, _ = f"{query['X-Amz-Credential']}////".split("/", 4)
        key = self._key(access_key, query.get("X-Amz-Security-Token"))
        self._scope(region, scope, service)
        seconds = query["X-Amz-Expires"]
        if not seconds.isdecimal() or time.time() > _unix(query["X-Amz-Date"]) + int(seconds):
            raise AccessRefused("ExpiredTokenException", "Request has expired")
        names = query["X-Amz-SignedHeaders"].split(";")
        signed = {name: request.headers.get(name, "") for name in names}
        unsigned = re.sub(r"&X-Amz-Signature=[0-9a-f]+", "", request.url)
        theirs = AWSRequest(method=request.method, url=unsigned, headers=signed)
        theirs.context["timestamp"] = query["X-Amz-Date"]
        auth = S3SigV4QueryAuth(_credentials(key), service, region, expires=int(seconds))
        _check_signature(auth, theirs, query["X-Amz-Signature"])

    def check_bearer(self, authorization: str) -> None:
        """Raise AccessRefused unless `authorization` carries a presigned CallWithBearerToken."""
        token = authorization.removeprefix("Bearer ").removeprefix(KEY_PREFIX)
        try:
            url = "https://" + base64.b64decode(token, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            url = ""
        if not authorization.startswith(f"Bearer {KEY_PREFIX}") or not url.endswith("&Version=1"):
            raise AccessRefused("UnrecognizedClientException", "The bearer token is no SageMaker API key")
        unsigned, _, given = url.removesuffix("&Version=1").partition("&X-Amz-Signature=")
        query = {name: values[0] for name, values in parse_qs(unsigned.partition("?")[2]).items()}
        if query.get("Action") != "CallWithBearerToken" or not {"X-Amz-Date", "X-Amz-Expires"} <= set(query):
            raise AccessRefused("UnrecognizedClientException", "The bearer token signs another action")
        access_key, _, region, service, _ = f"{query.get('X-Amz-Credential', '')}////".split("/", 4)
        key = self._key(access_key, query.get("X-Amz-Security-Token"))
        self._scope(region, service, SAGEMAKER)
        seconds = int(query["X-Amz-Expires"])
        if not 0 < seconds <= MAX_TOKEN_SECONDS or time.time() > _unix(query["X-Amz-Date"]) + seconds:
            raise AccessRefused("ExpiredTokenException", "The bearer token has expired")
        theirs = AWSRequest(method="POST", url=unsigned, headers={"host": "sagemaker.amazonaws.com"})
        theirs.context["timestamp"] = query["X-Amz-Date"]
        _check_signature(SigV4QueryAuth(_credentials(key), SAGEMAKER, region), theirs, given)

    def _key(self, access_key: str, session_token: str | None) -> AccessKey:
        key = self._keys.get(access_key)
        if key is None or key.session_token != (session_token or None):
            raise AccessRefused("UnrecognizedClientException", "The security token included is invalid.")
        return key

    def _scope(self, region: str, scope: str, service: str) -> None:
        """Check the credential scope; global services are always signed for us-east-1."""
        regions = {self.region, "us-east-1"} if service in _GLOBAL else {self.region}
        if region not in regions or scope != service:
            text = f"Credential should be scoped to {self.region}/{service}, not {region}/{scope}."
            raise AccessRefused("InvalidSignatureException", text)


def signed_service(headers: Mapping[str, str], url: str) -> str:
    """Return the service that a request is signed for; "" for an unsigned request."""
    text = headers.get("Authorization") or parse_qs(urlsplit(url).query).get("X-Amz-Credential", [""])[0]
    scope = re.search(r"[^/ ]+/\d{8}/[a-z0-9-]+/([a-z0-9-]+)/aws4_request", text)
    return "" if scope is None else scope[1]


def _check_body(request: SignedRequest) -> None:
    """Raise AccessRefused unless the signed digest is the SHA-256 of the body."""
    given = request.headers.get("X-Amz-Content-SHA256", "")
    if len(given) == 64 and given != hashlib.sha256(request.body).hexdigest():
        raise AccessRefused("XAmzContentSHA256Mismatch", "The body is not the one that was signed.")


def _check_signature(auth: Any, theirs: AWSRequest, given: str) -> None:
    canonical = auth.canonical_request(theirs)
    if not hmac.compare_digest(auth.signature(auth.string_to_sign(theirs, canonical), theirs), given):
        raise AccessRefused(
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided. "
            f"Canonical request: {canonical!r}",
        )


def _credentials(key: AccessKey) -> Credentials:
    return Credentials(key.access_key, key.secret_key, key.session_token)


def _unix(timestamp: str) -> int:
    try:
        return calendar.timegm(time.strptime(timestamp, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise AccessRefused("IncompleteSignatureException", f"{timestamp!r} is no timestamp") from None
