"""An external S3: requests at this address are signed again and forwarded to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import boto3
from aiohttp import web
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from yarl import URL

from sagemaker_local.aws.moto_proxy import answer, passed_on
from sagemaker_local.aws_errors import InternalFailure, ServiceUnavailable

_CALLERS: Final = frozenset(
    {"authorization", "host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}
)
"""Headers of the signature that was verified here."""
_PRESIGNED: Final = frozenset(
    {
        "x-amz-algorithm",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-expires",
        "x-amz-security-token",
        "x-amz-signature",
        "x-amz-signedheaders",
    }
)
"""Query parameters of a presigned URL's signature."""
_CHUNKED: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class Storage:
    """Forwards requests to one S3, so that callers and copies see the same objects."""

    def __init__(self, client: aiohttp.ClientSession, endpoint_url: str, region: str) -> None:
        """Requests are signed with the credentials of this process's environment."""
        self._client, self._url, self._region = client, endpoint_url.rstrip("/"), region
        self._session = boto3.Session()

    async def forward(self, request: web.Request, body: bytes) -> web.Response:
        """Forward a request; its path contains the bucket, as boto3 sends it to a custom endpoint.

        Raises:
            InternalFailure: this process has no credentials.
            ServiceUnavailable: the other S3 does not answer.
        """
        url = self._url + _unsigned(request.raw_path)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _CALLERS}
        chunked = request.headers.get("X-Amz-Content-SHA256") == _CHUNKED
        signed = await asyncio.to_thread(
            self._signed, request.method, url, passed_on(headers), body, chunked=chunked
        )
        try:
            async with self._client.request(
                request.method,
                URL(url, encoded=True),
                headers=signed,
                data=body,
                allow_redirects=False,
                auto_decompress=False,
            ) as received:
                return answer(request, received.status, dict(received.headers), await received.read())
        except (aiohttp.ClientError, OSError) as error:
            raise ServiceUnavailable(f"S3 at {self._url} does not answer: {error}") from error

    def _signed(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, chunked: bool
    ) -> dict[str, str]:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise InternalFailure(f"there are no credentials for S3 at {self._url}: set AWS_ACCESS_KEY_ID")
        request: Any = AWSRequest(method=method, url=url, headers=headers, data=body)
        if chunked:
            request.context["checksum"] = {"request_algorithm": {"in": "trailer"}}
        S3SigV4Auth(credentials, "s3", self._region).add_auth(request)
        return dict(request.headers.items())


def _unsigned(raw_path: str) -> str:
    """Remove a presigned URL's signature; the rest stays as the caller wrote it."""
    parts = urlsplit(raw_path)
    kept = [pair for pair in parts.query.split("&") if pair.partition("=")[0].lower() not in _PRESIGNED]
    query = "&".join(kept)
    return f"{parts.path}?{query}" if query else parts.path
