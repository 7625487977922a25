"""REST endpoints for targets (staff only)."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.deployments.models import Target
from controlplane.deployments.selectors import target_get
from controlplane.deployments.targets.services import target_create, target_remove, target_update
from controlplane.errors import UnsealError
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff


class TargetFilter(filters.FilterSet):  # type: ignore[misc]
    kind = filters.ChoiceFilter(choices=Target.Kind.choices)


class DeploymentTargetSerializer(serializers.ModelSerializer[Target]):
    urls = serializers.ListField(child=serializers.CharField())
    has_token = serializers.SerializerMethodField(
        help_text="openai_http: whether a bearer token is stored, which is never shown; also true of"
        " credentials that GRAFTWORK_SEALING_KEYS no longer opens: set token and headers again."
    )
    header_names = serializers.SerializerMethodField(
        help_text="openai_http: names of the stored headers, whose values are never shown."
    )

    def get_has_token(self, target: Target) -> bool:
        try:
            return bool(target.credentials.token)
        except UnsealError:
            return True

    def get_header_names(self, target: Target) -> list[str]:
        try:
            return sorted(target.credentials.headers)
        except UnsealError:
            return []

    class Meta:
        model = Target
        fields = (
            "name",
            "kind",
            "region",
            "endpoint_url",
            "role_arn",
            "assume_role_arn",
            "store",
            "host",
            "address",
            "urls",
            "has_token",
            "header_names",
            "metrics_namespace",
            "openai_path",
            "created_at",
        )


def _namespace(**options: Any) -> serializers.CharField:
    return serializers.CharField(
        max_length=255,
        allow_blank=True,
        help_text="sagemaker: CloudWatch namespace to which metrics of adapters are exported each minute. "
        "Default: no export.",
        **options,
    )


def _openai_path(**options: Any) -> serializers.BooleanField:
    return serializers.BooleanField(
        help_text="sagemaker: gateways send chats to the endpoints' OpenAI path with bearer tokens, where "
        "the image has it. Default: InvokeEndpoint, signed.",
        **options,
    )


class TargetInput(StrictSerializer):
    """Fields by kind: sagemaker takes the first five, local the next two, openai_http `urls`, `token`
    and `headers`."""

    name = serializers.CharField(max_length=40)
    kind = serializers.ChoiceField(choices=Target.Kind.choices)
    region = serializers.CharField(max_length=30, default="", allow_blank=True)
    endpoint_url = serializers.CharField(
        max_length=500,
        default="",
        allow_blank=True,
        help_text="Endpoint URL that replaces AWS's, such as a local SageMaker.",
    )
    role_arn = serializers.CharField(
        max_length=2048, default="", allow_blank=True, help_text="Execution role of endpoints."
    )
    assume_role_arn = serializers.CharField(
        max_length=2048,
        default="",
        allow_blank=True,
        help_text="Role assumed for every call. Default: the Celery worker's own credentials.",
    )
    store = serializers.CharField(
        max_length=500,
        default="",
        allow_blank=True,
        help_text="Location of adapter archives, as s3://bucket/prefix.",
    )
    host = serializers.CharField(
        max_length=255, default="", allow_blank=True, help_text="Host name. Default: that of the web process."
    )
    address = serializers.CharField(
        max_length=255,
        default="",
        allow_blank=True,
        help_text="Address that gateways use. Default: 127.0.0.1.",
    )
    urls = serializers.ListField(child=serializers.CharField(max_length=500), default=list, max_length=64)
    metrics_namespace = _namespace(default="")
    openai_path = _openai_path(default=False)
    token = serializers.CharField(
        max_length=4096,
        default="",
        allow_blank=True,
        write_only=True,
        help_text="Bearer token of the servers; stored sealed, never shown. Default: the installation's.",
    )
    headers = serializers.DictField(
        child=serializers.CharField(max_length=4096),
        default=dict,
        write_only=True,
        help_text="Headers that gateways add to each request to the servers; stored sealed, never shown.",
    )


class TargetChangesInput(StrictSerializer):
    metrics_namespace = _namespace(required=False)
    openai_path = _openai_path(required=False)
    token = serializers.CharField(max_length=4096, required=False, allow_blank=True, write_only=True)
    headers = serializers.DictField(
        child=serializers.CharField(max_length=4096), required=False, write_only=True
    )


class TargetsApi(generics.ListAPIView[Target]):
    permission_classes = (Staff,)
    serializer_class = DeploymentTargetSerializer
    filterset_class = TargetFilter

    def get_queryset(self) -> QuerySet[Target]:
        return Target.objects.order_by("name")

    @idempotent()
    @extend_schema(request=TargetInput, responses={201: DeploymentTargetSerializer})
    def post(self, request: Request) -> Response:
        """Creates a target without calling it."""
        data = TargetInput(data=request.data)
        data.is_valid(raise_exception=True)
        target = target_create(**data.validated_data)
        return Response(DeploymentTargetSerializer(target).data, status.HTTP_201_CREATED)


class TargetApi(ObjectApi[Target]):
    permission_classes = (Staff,)
    serializer_class = DeploymentTargetSerializer

    def get_object(self) -> Target:
        return target_get(name=self.kwargs["target"])

    @conditional()
    def get(self, request: Request, target: str) -> Response:
        return Response(DeploymentTargetSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(request=TargetChangesInput)
    def patch(self, request: Request, target: str) -> Response:
        """Changes the export of metrics to CloudWatch, the use of the OpenAI path, or running servers'
        token and headers."""
        values = validated(TargetChangesInput, request.data)
        return Response(DeploymentTargetSerializer(target_update(target=self.get_object(), **values)).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, target: str) -> Response:
        """Deletes the target, which must have no deployments."""
        target_remove(target=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
