"""REST of webhooks."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.webhooks.events import CHOOSABLE, EVENTS
from controlplane.webhooks.filters import DeliveryFilter, EndpointFilter
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint
from controlplane.webhooks.selectors import delivery_get, delivery_list, endpoint_get, endpoint_list
from controlplane.webhooks.services import (
    delivery_resend,
    endpoint_create,
    endpoint_delete,
    endpoint_rotate,
    endpoint_test,
    endpoint_update,
)

_MAY: Final = tenant_may(Permission.WEBHOOKS_READ, Permission.WEBHOOKS_WRITE)
_EVENTS: Final = "; ".join(f"`{name}`: {EVENTS[name]}" for name in CHOOSABLE)


def _events(*, required: bool) -> serializers.ListField:
    child = serializers.CharField(max_length=60)
    return serializers.ListField(child=child, required=required, max_length=100, help_text=_EVENTS)


class EndpointSerializer(serializers.ModelSerializer[WebhookEndpoint]):
    events = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = WebhookEndpoint
        fields = (
            "id",
            "url",
            "description",
            "events",
            "created_at",
            "old_secret_until",
            "failing_since",
            "disabled_at",
            "disabled_reason",
        )


class EndpointCreatedSerializer(EndpointSerializer):
    secret = serializers.CharField(help_text="`whsec_...`; verifies signatures. It is shown only once.")

    class Meta:
        model = WebhookEndpoint
        fields = (*EndpointSerializer.Meta.fields, "secret")


class EndpointInput(StrictSerializer):
    url = serializers.CharField(max_length=1000, help_text="https://...")
    events = _events(required=True)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)


class EndpointChangesInput(StrictSerializer):
    url = serializers.CharField(max_length=1000, required=False)
    events = _events(required=False)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)
    enabled = serializers.BooleanField(required=False)


class WebhookRotationInput(StrictSerializer):
    overlap_hours = serializers.IntegerField(
        default=24, min_value=0, max_value=720, help_text="How long the old secret keeps signing as well."
    )


class DeliverySerializer(serializers.ModelSerializer[WebhookDelivery]):
    event = serializers.CharField(source="event_id", help_text="`webhook-id`")
    type = serializers.CharField(source="event.type")
    created_at = serializers.DateTimeField(source="event.created_at")
    status = serializers.CharField(help_text=", ".join(WebhookDelivery.Status.values))

    class Meta:
        model = WebhookDelivery
        fields = (
            "id",
            "event",
            "type",
            "created_at",
            "status",
            "attempts",
            "next_at",
            "last_at",
            "last_status",
            "last_answer",
            "last_ms",
        )


class WebhooksApi(generics.ListAPIView[WebhookEndpoint]):
    permission_classes = (_MAY,)
    serializer_class = EndpointSerializer
    filterset_class = EndpointFilter
    queryset = WebhookEndpoint.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[WebhookEndpoint]:
        return endpoint_list(tenant=request_tenant(self.request))

    @idempotent()
    @extend_schema(request=EndpointInput, responses={201: EndpointCreatedSerializer})
    def post(self, request: Request) -> Response:
        """Creates an endpoint. Requests to it are signed by the Standard Webhooks scheme."""
        values = validated(EndpointInput, request.data)
        endpoint, secret = endpoint_create(
            tenant=request_tenant(request), created_by=request_user(request), **values
        )
        return Response({**EndpointSerializer(endpoint).data, "secret": secret}, status.HTTP_201_CREATED)


class _OfEndpoint(APIView):
    def endpoint(self) -> WebhookEndpoint:
        return endpoint_get(tenant=request_tenant(self.request), endpoint_id=self.kwargs["endpoint_id"])


class WebhookApi(_OfEndpoint, RetrieveApi[WebhookEndpoint]):
    permission_classes = (_MAY,)
    serializer_class = EndpointSerializer
    etag_ignores = frozenset({"failing_since"})

    def get_object(self) -> WebhookEndpoint:
        return self.endpoint()

    @conditional()
    @extend_schema(request=EndpointChangesInput)
    def patch(self, request: Request, endpoint_id: str) -> Response:
        """Changes the given fields; `enabled` disables the endpoint or enables it again."""
        values = validated(EndpointChangesInput, request.data)
        endpoint = endpoint_update(endpoint=self.get_object(), **values)
        return Response(EndpointSerializer(endpoint).data)

    @conditional()
    def delete(self, request: Request, endpoint_id: str) -> Response:
        """Deletes the endpoint with its deliveries."""
        endpoint_delete(endpoint=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class WebhookRotationApi(_OfEndpoint):
    permission_classes = (_MAY,)

    @idempotent()
    @extend_schema(request=WebhookRotationInput, responses={200: EndpointCreatedSerializer})
    def post(self, request: Request, endpoint_id: str) -> Response:
        """Rotates the secret; during the overlap requests carry signatures by both secrets."""
        overlap = dt.timedelta(hours=validated(WebhookRotationInput, request.data)["overlap_hours"])
        endpoint, secret = endpoint_rotate(endpoint=self.endpoint(), overlap=overlap)
        return Response({**EndpointSerializer(endpoint).data, "secret": secret})


class WebhookTestApi(_OfEndpoint):
    permission_classes = (_MAY,)

    @idempotent()
    @extend_schema(request=None, responses={201: DeliverySerializer})
    def post(self, request: Request, endpoint_id: str) -> Response:
        """Sends a `webhook.test` event; its delivery shows the endpoint's answer."""
        delivery = endpoint_test(endpoint=self.endpoint())
        return Response(DeliverySerializer(delivery).data, status.HTTP_201_CREATED)


class WebhookDeliveriesApi(_OfEndpoint, generics.ListAPIView[WebhookDelivery]):
    """Deliveries to an endpoint, newest first, with the last answer."""

    permission_classes = (_MAY,)
    serializer_class = DeliverySerializer
    filterset_class = DeliveryFilter
    queryset = WebhookDelivery.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[WebhookDelivery]:
        return delivery_list(endpoint=self.endpoint())


class WebhookResendApi(_OfEndpoint):
    permission_classes = (_MAY,)

    @idempotent()
    @extend_schema(request=None, responses=DeliverySerializer)
    def post(self, request: Request, endpoint_id: str, delivery_id: int) -> Response:
        """Sends a delivery again under the same `webhook-id`."""
        delivery = delivery_get(endpoint=self.endpoint(), delivery_id=delivery_id)
        return Response(DeliverySerializer(delivery_resend(delivery=delivery)).data)
