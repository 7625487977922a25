"""REST of the seller's and tenants' billing details: staff sets both, a tenant its own."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.billing.models import BillingParty
from controlplane.billing.parties.selectors import BUYER_FIELDS, SELLER, SELLER_FIELDS, party_get, party_list
from controlplane.billing.parties.services import party_remove, party_set
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get

_MAY: Final = tenant_may(Permission.BILLING_READ, Permission.BILLING_WRITE)


class _PartySerializer(StrictSerializer, serializers.ModelSerializer[BillingParty]):
    starts = serializers.DateField(required=False, help_text="First UTC day. Defaults to today.")
    # An address keeps its line breaks, as on letters.
    address = serializers.CharField(
        max_length=500, help_text="Postal address, one line per line of the address."
    )


class SellerSerializer(_PartySerializer):
    class Meta:
        model = BillingParty
        fields = ("id", "starts", *SELLER_FIELDS)


class BillingDetailsSerializer(_PartySerializer):
    class Meta:
        model = BillingParty
        fields = ("id", "starts", *BUYER_FIELDS)


class _PartiesApi(generics.ListAPIView[BillingParty]):
    serializer_class: type[serializers.BaseSerializer[BillingParty]] | None = BillingDetailsSerializer
    queryset = BillingParty.objects.none()  # tells the schema the model

    def party_of(self, request: Request) -> str:
        """Return the tenant's id, or "" for the seller."""
        raise NotImplementedError(f"{type(self).__name__} must define whose details it returns")

    def get_queryset(self) -> QuerySet[BillingParty]:
        return party_list(tenant=self.party_of(self.request))

    def _set(self, request: Request) -> Response:
        tenant, values = self.party_of(request), validated(self.get_serializer_class(), request.data)
        made = party_set(tenant=tenant, starts=values.pop("starts", None), values=values)
        return Response(self.get_serializer(made).data, status.HTTP_201_CREATED)


class SellerApi(_PartiesApi):
    """The seller's details as documents name them, by first day; newest first."""

    permission_classes = (Staff,)
    serializer_class = SellerSerializer

    def party_of(self, request: Request) -> str:
        return SELLER

    @idempotent()
    @extend_schema(request=SellerSerializer, responses={201: SellerSerializer})
    def post(self, request: Request) -> Response:
        """Sets the seller's details from a UTC day on, replacing those that start on the same day."""
        return self._set(request)


class BillingDetailsApi(_PartiesApi):
    """The tenant's billing details as documents name them, by first day; newest first."""

    permission_classes = (_MAY,)

    def party_of(self, request: Request) -> str:
        return request_tenant(request).pk

    @idempotent()
    @extend_schema(request=BillingDetailsSerializer, responses={201: BillingDetailsSerializer})
    def post(self, request: Request) -> Response:
        """Sets the tenant's billing details from a UTC day on, replacing those that start on the same day."""
        return self._set(request)


class TenantBillingDetailsApi(_PartiesApi):
    """A tenant's billing details as documents name them, by first day; newest first."""

    permission_classes = (Staff,)

    def party_of(self, request: Request) -> str:
        return tenant_get(slug=self.kwargs["slug"]).pk

    @idempotent()
    @extend_schema(request=BillingDetailsSerializer, responses={201: BillingDetailsSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Sets a tenant's billing details from a UTC day on, replacing those that start on the same day."""
        return self._set(request)


class _PlannedApi(RetrieveApi[BillingParty]):
    @conditional()
    def delete(self, request: Request, **kwargs: Any) -> Response:
        """Deletes details that are planned from a later day on."""
        party_remove(party=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class SellerPlannedApi(_PlannedApi):
    permission_classes = (Staff,)
    serializer_class = SellerSerializer

    def get_object(self) -> BillingParty:
        return party_get(tenant=SELLER, party_id=self.kwargs["seller"])


class BillingDetailsPlannedApi(_PlannedApi):
    permission_classes = (_MAY,)
    serializer_class = BillingDetailsSerializer

    def get_object(self) -> BillingParty:
        return party_get(tenant=request_tenant(self.request).pk, party_id=self.kwargs["details"])
