"""Dispatches every request except the runtime's, by the service that it is signed for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from sagemaker_local import aws_errors as errors
from sagemaker_local.aws.cloudwatch import CloudWatch
from sagemaker_local.aws.json_service import CONTENT_TYPE, JsonService
from sagemaker_local.aws.moto_proxy import MotoProxy
from sagemaker_local.aws.signature import S3, Account, SignedRequest, signed_service
from sagemaker_local.aws.storage import Storage
from sagemaker_local.aws_errors import AccessDenied, ApiError, UnknownOperationException
from sagemaker_local.errors import AccessRefused
from sagemaker_local.faults import Faults

_TARGET: Final = "X-Amz-Target"
_FORBIDDEN: Final = 403
_SAVINGS_PLANS: Final = "savingsplans"


class FrontDoor:
    """Checks signatures and dispatches: to JSON services, an external S3 if configured, else to moto."""

    def __init__(
        self,
        account: Account,
        services: Sequence[JsonService],
        moto: MotoProxy,
        cloudwatch: CloudWatch,
        faults: Faults,
        storage: Storage | None = None,
    ) -> None:
        """`storage` is None if moto serves S3 too."""
        self._faults, self._storage = faults, storage
        self._account, self._moto, self._cloudwatch = account, moto, cloudwatch
        self._services: Mapping[str, JsonService] = {item.target_prefix: item for item in services}

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        url = f"{request.scheme}://{request.host}{request.raw_path}"
        try:
            prefix, _, operation = request.headers.get(_TARGET, "").rpartition(".")
            service = self._services.get(prefix)
            signer = signed_service(request.headers, url) if service is None else service.signing_name
            if signer == _SAVINGS_PLANS:
                service, operation = self._services[signer], request.path[1:]
            try:
                self._account.check(SignedRequest(request.method, url, request.headers, body), signer)
            except AccessRefused as refusal:
                raise AccessDenied(refusal.message, refusal.code) from None
            if service is not None:
                return web.Response(
                    body=await service.call(operation, body), headers={"Content-Type": CONTENT_TYPE}
                )
            if signer in ("sagemaker", "application-autoscaling"):
                raise UnknownOperationException(
                    f"{signer} has no operation at {request.method} {request.path}"
                )
            self._faults.meet(signer)
            if signer == S3 and self._storage is not None:
                return await self._storage.forward(request, body)
            if self._cloudwatch.speaks(request):
                return await self._cloudwatch(request, body)
            return await self._moto.forward(request, body)
        except ApiError as error:
            return _refusal(error, request, url)


def _refusal(error: ApiError, request: web.Request, url: str) -> web.Response:
    """Return the error in the caller's protocol."""
    if _TARGET in request.headers or signed_service(request.headers, url) == _SAVINGS_PLANS:
        kind, body, status = CONTENT_TYPE, errors.as_json(error), error.status
    elif "Smithy-Protocol" in request.headers:
        kind, body, status = "application/cbor", errors.as_cbor(error), error.status
    elif signed_service(request.headers, url) in (S3, ""):
        kind, body, status = "application/xml", errors.as_s3(error), error.status
        status = _FORBIDDEN if isinstance(error, AccessDenied) else status
    else:
        kind, body, status = "text/xml", errors.as_query(error), error.status
        status = _FORBIDDEN if isinstance(error, AccessDenied) else status
    headers = {"Content-Type": kind, "x-amzn-ErrorType": error.code}
    if "Smithy-Protocol" in request.headers:
        headers["Smithy-Protocol"] = request.headers["Smithy-Protocol"]
    return web.Response(status=status, body=body, headers=headers)
