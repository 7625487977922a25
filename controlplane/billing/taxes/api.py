"""REST of tax treatments: a tenant reads its own, staff sets them."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.billing.models import TaxKind, TaxTreatment
from controlplane.billing.taxes.selectors import treatment_get, treatment_list
from controlplane.billing.taxes.services import treatment_remove, treatment_set
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get


class TaxTreatmentSerializer(serializers.ModelSerializer[TaxTreatment]):
    kind = serializers.CharField(help_text=", ".join(TaxKind.values))

    class Meta:
        model = TaxTreatment
        fields = ("id", "starts", "kind", "label", "rate_percent", "tax_number", "text")


class TaxTreatmentInput(StrictSerializer):
    starts = serializers.DateField(help_text="First UTC day. In force until the next one starts.")
    kind = serializers.ChoiceField(choices=TaxKind.values)
    # The field's name is that of an attribute of the base class, which it overrides.
    label = serializers.CharField(max_length=30, help_text="Name of the tax on documents, such as VAT.")  # type: ignore[assignment]
    rate_percent = serializers.DecimalField(
        max_digits=7,
        decimal_places=4,
        min_value=0,
        max_value=100,
        required=False,
        help_text="Decimal as a string, such as 8.875.",
    )
    tax_number = serializers.CharField(max_length=40, required=False, allow_blank=True)
    text = serializers.CharField(
        max_length=300, required=False, allow_blank=True, help_text="Legal text to print on documents."
    )


class TaxTreatmentsApi(generics.ListAPIView[TaxTreatment]):
    """The tenant's tax treatments by first day, the newest first."""

    permission_classes = (tenant_may(Permission.BILLING_READ),)
    serializer_class = TaxTreatmentSerializer
    queryset = TaxTreatment.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[TaxTreatment]:
        return treatment_list(tenant=request_tenant(self.request).pk)


class TenantTaxTreatmentsApi(generics.ListAPIView[TaxTreatment]):
    """A tenant's tax treatments by first day, the newest first."""

    permission_classes = (Staff,)
    serializer_class = TaxTreatmentSerializer
    queryset = TaxTreatment.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[TaxTreatment]:
        return treatment_list(tenant=tenant_get(slug=self.kwargs["slug"]).pk)

    @idempotent()
    @extend_schema(request=TaxTreatmentInput, responses={201: TaxTreatmentSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Puts a tax treatment in force from a UTC day on. An invoice uses that of its month's last day."""
        values = validated(TaxTreatmentInput, request.data)
        made = treatment_set(tenant=tenant_get(slug=slug), **values)
        return Response(TaxTreatmentSerializer(made).data, status.HTTP_201_CREATED)


class TenantTaxTreatmentApi(RetrieveApi[TaxTreatment]):
    permission_classes = (Staff,)
    serializer_class = TaxTreatmentSerializer

    def get_object(self) -> TaxTreatment:
        tenant = tenant_get(slug=self.kwargs["slug"])
        return treatment_get(tenant=tenant.pk, treatment_id=self.kwargs["treatment"])

    @conditional()
    def delete(self, request: Request, slug: str, treatment: int) -> Response:
        """Deletes a treatment that no finalized invoice used."""
        treatment_remove(treatment=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
