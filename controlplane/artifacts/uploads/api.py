"""REST of uploads: tus 1.0 (tus.io) with creation, expiration, checksum and termination; and JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.http import http_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from contracts.adapters.file_limit import LARGEST_ADAPTER_BYTES
from controlplane.artifacts.uploads.append import CHECKSUMS, Checksum, upload_append
from controlplane.artifacts.uploads.bodies import request_body
from controlplane.artifacts.uploads.models import Upload
from controlplane.artifacts.uploads.selectors import upload_get, upload_list
from controlplane.artifacts.uploads.services import upload_create, upload_discard
from controlplane.errors import InvalidInputError
from controlplane.platform.http.errors import PreconditionFailed
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.tenants.permissions import request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission

VERSION: Final = "1.0.0"
PATCH_TYPE: Final = "application/offset+octet-stream"
_ABILITIES: Final = {
    "Tus-Version": VERSION,
    "Tus-Extension": "creation,expiration,checksum,termination",
    "Tus-Max-Size": str(LARGEST_ADAPTER_BYTES),
    "Tus-Checksum-Algorithm": ",".join(CHECKSUMS),
}


class UploadSerializer(serializers.ModelSerializer[Upload]):
    class Meta:
        model = Upload
        fields = ("id", "name", "size", "offset", "expires_at", "created_at")


class UploadInput(StrictSerializer):
    name = serializers.CharField(
        max_length=200, help_text="adapter_config.json, adapter_model.safetensors, or a .zip or .tar.gz."
    )
    size = serializers.IntegerField(min_value=1, help_text="Bytes.")


class UploadsApi(generics.ListAPIView[Upload]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = UploadSerializer
    queryset = Upload.objects.none()  # names the model for the schema

    def get_queryset(self) -> QuerySet[Upload]:
        return upload_list(tenant=request_tenant(self.request))

    @extend_schema(request=UploadInput, responses={201: UploadSerializer})
    def post(self, request: Request) -> Response:
        """Creates an upload by JSON, or by tus's headers Upload-Length and Upload-Metadata (`filename`)."""
        check_version(request)
        announced = _announced(request) if "Upload-Length" in request.headers else request.data
        values = validated(UploadInput, announced)
        upload = upload_create(tenant=request_tenant(request), created_by=request_user(request), **values)
        place = reverse("api:upload", kwargs={"upload_id": upload.pk}, request=request)
        headers = {**_state(upload), "Location": place}
        return Response(UploadSerializer(upload).data, status.HTTP_201_CREATED, headers=headers)

    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:
        """Returns the tus version, extensions and limits."""
        return Response(status=status.HTTP_204_NO_CONTENT, headers=_ABILITIES)


class UploadApi(ObjectApi[Upload]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = UploadSerializer

    def get_object(self) -> Upload:
        return upload_get(tenant=request_tenant(self.request), upload_id=self.kwargs["upload_id"])

    @conditional()
    def get(self, request: Request, upload_id: str) -> Response:
        """Returns the upload and its offset; HEAD returns the same in tus's headers."""
        check_version(request)
        upload = self.get_object()
        return Response(UploadSerializer(upload).data, headers=_state(upload))

    @extend_schema(
        request={PATCH_TYPE: OpenApiTypes.BINARY},
        parameters=[
            OpenApiParameter("Upload-Offset", int, "header", required=True),
            OpenApiParameter(
                "Upload-Checksum", str, "header", description="Checksum of the body, as `sha256 <base64>`."
            ),
        ],
        responses={204: None},
    )
    def patch(self, request: Request, upload_id: str) -> Response:
        """Appends the body's bytes at Upload-Offset, which must be the upload's current offset."""
        check_version(request)
        upload = self.get_object()
        offset = _whole_number(request, "Upload-Offset")
        checksum = _checksum(request)
        if (kind := request.content_type.partition(";")[0].strip()) != PATCH_TYPE:
            raise UnsupportedMediaType(kind, f"send the bytes as {PATCH_TYPE}")
        upload = upload_append(upload=upload, offset=offset, body=request_body(request), checksum=checksum)
        return Response(status=status.HTTP_204_NO_CONTENT, headers=_state(upload))

    @conditional()
    def delete(self, request: Request, upload_id: str) -> Response:
        """Removes the upload and its bytes."""
        check_version(request)
        upload_discard(upload=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT, headers={"Tus-Resumable": VERSION})


def check_version(request: Request) -> None:
    """Raises PreconditionFailed for another version of tus."""
    if request.headers.get("Tus-Resumable", VERSION) != VERSION:
        raise PreconditionFailed(f"this server speaks tus {VERSION}")


def _state(upload: Upload) -> dict[str, str]:
    name = base64.b64encode(upload.name.encode()).decode()
    return {
        "Tus-Resumable": VERSION,
        "Upload-Offset": str(upload.offset),
        "Upload-Length": str(upload.size),
        "Upload-Metadata": f"filename {name}",
        "Upload-Expires": http_date(upload.expires_at.timestamp()),
        "Cache-Control": "no-store",
    }


def _announced(request: Request) -> dict[str, Any]:
    """Read name and size from tus's headers."""
    values: dict[str, Any] = {"size": _whole_number(request, "Upload-Length")}
    for pair in request.headers.get("Upload-Metadata", "").split(","):
        key, _, text = pair.strip().partition(" ")
        if key == "filename":
            values["name"] = _base64(text, "Upload-Metadata").decode(errors="replace")
    return values


def _checksum(request: Request) -> Checksum | None:
    if (text := request.headers.get("Upload-Checksum")) is None:
        return None
    algorithm, _, digest = text.partition(" ")
    if algorithm not in CHECKSUMS:
        raise InvalidInputError(f"checksums are {', '.join(CHECKSUMS)}", field="Upload-Checksum")
    return Checksum(algorithm, _base64(digest, "Upload-Checksum"))


def _base64(text: str, header: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"{header} holds no base64", field=header) from error


def _whole_number(request: Request, header: str) -> int:
    text = request.headers.get(header, "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidInputError(f"{header} must be a number of bytes", field=header)
    return int(text)
