"""CloudWatch: clients use CBOR (Smithy RPC v2), moto only the query protocol.

botocore implements both: its parsers read inputs as well as outputs, its serializers write both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from botocore.exceptions import BotoCoreError
from botocore.parsers import QueryParser, ResponseParserError, RpcV2CBORParser
from botocore.serialize import QuerySerializer, RpcV2CBORSerializer

from sagemaker_local.aws import shapes
from sagemaker_local.aws.moto_proxy import MotoProxy
from sagemaker_local.aws_errors import ApiError, SerializationException, UnknownOperationException

_PROTOCOL: Final = "rpc-v2-cbor"
_FORM: Final = "application/x-www-form-urlencoded; charset=utf-8"


class CloudWatch:
    """Translates between the two protocols, and calls CloudWatch for the rest of this server."""

    def __init__(self, moto: MotoProxy, region: str) -> None:
        self._moto, self._region = moto, region

    def is_running(self) -> bool:
        return self._moto.is_running

    def speaks(self, request: web.Request) -> bool:
        return request.headers.get("Smithy-Protocol") == _PROTOCOL

    async def __call__(self, request: web.Request, body: bytes) -> web.Response:
        """Handle `/service/{service}/operation/{operation}`. Raises ApiError."""
        operation = request.path.rpartition("/")[2]
        if operation not in _model().operation_names:
            raise UnknownOperationException(f"CloudWatch has no operation {operation}")
        shape = _model().operation_model(operation)
        try:
            asked = {"body": body, "headers": {}, "status_code": 200}
            given = RpcV2CBORParser().parse(asked, shape.input_shape) if shape.input_shape else {}
        except (ResponseParserError, ValueError, KeyError, AttributeError) as error:
            raise SerializationException(f"The body cannot be read: {error}") from error
        given.pop("ResponseMetadata", None)
        answer = await self.call(operation, given)
        written = bytearray()
        if shape.output_shape is not None:
            RpcV2CBORSerializer()._serialize_data_item(written, answer, shape.output_shape)
        headers = {"Content-Type": "application/cbor", "Smithy-Protocol": _PROTOCOL}
        return web.Response(body=bytes(written), headers=headers)

    async def call(self, operation: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return an operation's output, by botocore's names. Raises ApiError with CloudWatch's own code."""
        shape = _model().operation_model(operation)
        try:
            request = QuerySerializer().serialize_to_request(dict(given), shape)
        except BotoCoreError as error:
            raise SerializationException(str(error)) from error
        headers = {"Content-Type": _FORM, "Authorization": self._scope()}
        body = urlencode(request["body"]).encode()
        status, received, content = await self._moto.ask("POST", "/", headers, body)
        answer = QueryParser().parse(
            {"body": content, "headers": received, "status_code": status}, shape.output_shape
        )
        answer.pop("ResponseMetadata", None)
        if (refusal := answer.get("Error")) is not None:
            raise ApiError(str(refusal.get("Message", "")), str(refusal.get("Code", "InternalFailure")))
        return dict(answer)

    def _scope(self) -> str:
        """Return a header from which moto reads service and region; it checks no signature."""
        scope = f"local/20000101/{self._region}/monitoring/aws4_request"
        return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"


def _model() -> Any:
    return shapes.service("cloudwatch")
