"""REST endpoints for copies (staff only)."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.base_routes import SageMakerTarget
from controlplane.catalog.selectors import base_model_get
from controlplane.deployments.capabilities import RunningEngine
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.deployments.models import Copy
from controlplane.deployments.selectors import copy_get, copy_list
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff


class SageMakerOutput(serializers.ModelSerializer[Copy]):
    adapters = serializers.CharField(source="adapter_naming")

    class Meta:
        model = Copy
        fields = ("region", "endpoint", "component", "adapters", "api", "container", "loaded")


class CopySerializer(serializers.ModelSerializer[Copy]):
    base_model = serializers.CharField(source="base_model.name")
    sagemaker = serializers.SerializerMethodField()
    deployment = serializers.CharField(
        source="deployment.name",
        allow_null=True,
        read_only=True,
        help_text="Deployment of the copy; null if registered manually.",
    )

    class Meta:
        model = Copy
        fields = (
            "id",
            "base_model",
            "kind",
            "url",
            "loads_adapters",
            "sagemaker",
            "deployment",
            "merged_adapter",
            "canary",
            "percent",
            "engine",
            "engine_version",
            "max_rank",
            "created_at",
        )

    @extend_schema_field(SageMakerOutput(allow_null=True))
    def get_sagemaker(self, copy: Copy) -> Any:
        return SageMakerOutput(copy).data if copy.kind == Copy.Kind.SAGEMAKER else None


class SageMakerInput(StrictSerializer):
    region = serializers.CharField(max_length=30)
    endpoint = serializers.CharField(max_length=63)
    component = serializers.CharField(max_length=63, default="", allow_blank=True)
    adapters = serializers.ChoiceField(
        choices=Copy.AdapterNaming.choices,
        default=Copy.AdapterNaming.COMPONENTS,
        help_text="How requests name the adapter. components: one inference component per adapter;"
        " reference: the bundled worker; name: LMI, vLLM.",
    )
    api = serializers.ChoiceField(
        choices=Copy.Api.choices,
        default=Copy.Api.INVOCATIONS,
        help_text="invocations: InvokeEndpoint; openai: chats on the endpoint's OpenAI path; routes: "
        "InvokeEndpoint with a route of vLLM's in the custom attributes.",
    )
    container = serializers.ChoiceField(
        choices=Copy.Container.choices,
        default=Copy.Container.LMI,
        help_text="Form of the container's requests. lmi: LMI, the bundled worker; vllm: vLLM;"
        " tgi: text-generation-inference; triton, pytorch: what a deployment writes for the image.",
    )
    loaded = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        max_length=1000,
        help_text="tgi: engine names of the adapters in LORA_ADAPTERS. Requests for others are refused,"
        " since the container would serve them with the base model.",
    )


class CopyInput(StrictSerializer):
    base_model = serializers.CharField(max_length=63)
    kind = serializers.ChoiceField(choices=Copy.Kind.choices)
    url = serializers.CharField(
        max_length=500,
        default="",
        allow_blank=True,
        help_text="Base URL without /v1. Optional for kind sagemaker; default: the region's endpoint.",
    )
    loads_adapters = serializers.BooleanField(
        default=False, help_text="openai_http: whether gateways may make vLLM load missing adapters."
    )
    engine = serializers.ChoiceField(
        choices=Copy.Engine.choices,
        default="",
        allow_blank=True,
        help_text="Engine that serves it, which decides what adapters it gets; '' if it is not known.",
    )
    engine_version = serializers.CharField(
        max_length=60, default="", allow_blank=True, help_text="vllm: its version, as GET /version tells."
    )
    max_rank = serializers.IntegerField(
        min_value=1,
        max_value=512,
        required=False,
        allow_null=True,
        help_text="Largest LoRA rank that it was started with (--max-lora-rank).",
    )
    sagemaker = SageMakerInput(required=False, help_text="Required for kind sagemaker.")
    token = serializers.CharField(
        max_length=4096,
        required=False,
        allow_blank=True,
        write_only=True,
        help_text="openai_http: bearer token of the server; stored sealed, never shown. '' removes a stored"
        " one; omitted, it stays.",
    )
    headers = serializers.DictField(
        child=serializers.CharField(max_length=4096),
        required=False,
        write_only=True,
        help_text="openai_http: headers that gateways add to each request; stored sealed, never shown. They"
        " replace the stored ones; omitted, those stay.",
    )


class CopyFilter(filters.FilterSet):  # type: ignore[misc]
    base_model = filters.CharFilter("base_model__name")
    kind = filters.ChoiceFilter(choices=Copy.Kind.choices)


class CopiesApi(generics.ListAPIView[Copy]):
    permission_classes = (Staff,)
    serializer_class = CopySerializer
    filterset_class = CopyFilter

    def get_queryset(self) -> QuerySet[Copy]:
        return copy_list()

    @idempotent()
    @extend_schema(request=CopyInput, responses={201: CopySerializer})
    def post(self, request: Request) -> Response:
        """Registers a server in the route table.

        Registering it again returns the existing copy, with the given values; a token or headers that the
        request does not name are kept.
        """
        data = CopyInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        target = values.get("sagemaker")
        copy = copy_register(
            base_model=base_model_get(name=values["base_model"]),
            kind=values["kind"],
            url=values["url"],
            loads_adapters=values["loads_adapters"],
            sagemaker=None if target is None else SageMakerTarget.from_dict(target),
            engine=RunningEngine(values["engine"], values["engine_version"], values.get("max_rank")),
            token=values.get("token"),
            headers=values.get("headers"),
        )
        return Response(CopySerializer(copy).data, status.HTTP_201_CREATED)


class CopyApi(ObjectApi[Copy]):
    permission_classes = (Staff,)
    serializer_class = CopySerializer

    def get_object(self) -> Copy:
        return copy_get(copy_id=self.kwargs["copy_id"])

    @conditional()
    def get(self, request: Request, copy_id: str) -> Response:
        return Response(CopySerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, copy_id: str) -> Response:
        copy_remove(copy=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
