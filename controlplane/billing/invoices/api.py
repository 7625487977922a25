"""REST of invoices: a tenant reads its own, staff drafts and finalizes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, status
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.documents.document import AnyDocument
from controlplane.billing.documents.formats import CONTENT_TYPES, document_download
from controlplane.billing.filters import FleetInvoiceFilter, InvoiceFilter
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.selectors import invoice_get, invoice_list, line_list
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize
from controlplane.billing.models import Invoice, InvoiceLine
from controlplane.billing.serializers import (
    FinalizeInput,
    InvoiceInput,
    InvoiceLineSerializer,
    InvoiceSerializer,
)
from controlplane.errors import InvalidInputError
from controlplane.platform.http.object_api import RetrieveApi
from controlplane.platform.http.strict import validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get

_MAY: Final = tenant_may(Permission.BILLING_READ)
FILE: Final = extend_schema(
    parameters=[OpenApiParameter("form", enum=list(CONTENT_TYPES), description="Defaults to csv.")],
    responses={(200, kind.partition(";")[0]): OpenApiTypes.BINARY for kind in CONTENT_TYPES.values()},
)


class ByForm(DefaultContentNegotiation):
    """Ignore the Accept header: the `form` query parameter selects the file format.

    No renderer takes part in a file response.
    """

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, str(first.media_type)


class InvoicesApi(generics.ListAPIView[Invoice]):
    """The tenant's invoices, newest first."""

    permission_classes = (_MAY,)
    serializer_class = InvoiceSerializer
    filterset_class = InvoiceFilter
    queryset = Invoice.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[Invoice]:
        return invoice_list(tenant=request_tenant(self.request).pk)


class InvoiceApi(RetrieveApi[Invoice]):
    """lines + carried in + tax + shortfall = credits + prepaid + due + carried out, to the nano-unit."""

    permission_classes = (_MAY,)
    serializer_class = InvoiceSerializer

    def get_object(self) -> Invoice:
        return invoice_get(invoice_id=self.kwargs["invoice"], tenant=request_tenant(self.request).pk)


class InvoiceLinesApi(generics.ListAPIView[InvoiceLine]):
    """The invoice's lines in order. Unpriced lines have neither a price nor an amount."""

    permission_classes = (_MAY,)
    serializer_class = InvoiceLineSerializer
    queryset = InvoiceLine.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[InvoiceLine]:
        tenant = request_tenant(self.request).pk
        return line_list(invoice=invoice_get(invoice_id=self.kwargs["invoice"], tenant=tenant))


class DocumentFileApi(APIView):
    content_negotiation_class = ByForm

    def file(self, document: AnyDocument) -> StreamingHttpResponse:
        """Return the document in the file format that the request asks for, by default CSV."""
        form = self.request.query_params.get("form") or "csv"
        if form not in CONTENT_TYPES:
            raise InvalidInputError(f"form must be one of {', '.join(CONTENT_TYPES)}", field="form")
        return document_download(self.request._request, document, form)


class InvoiceFileApi(DocumentFileApi):
    permission_classes = (_MAY,)

    @FILE
    def get(self, request: Request, invoice: int) -> StreamingHttpResponse:
        """The invoice as a file; a draft has no PDF."""
        found = invoice_get(invoice_id=invoice, tenant=request_tenant(request).pk)
        return self.file(InvoiceDocument(found))


class FleetInvoicesApi(generics.ListAPIView[Invoice]):
    """Every tenant's invoices, newest first."""

    permission_classes = (Staff,)
    serializer_class = InvoiceSerializer
    filterset_class = FleetInvoiceFilter
    queryset = Invoice.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[Invoice]:
        return invoice_list(tenant=None)


class FleetInvoiceFileApi(DocumentFileApi):
    permission_classes = (Staff,)

    @FILE
    def get(self, request: Request, invoice: int) -> StreamingHttpResponse:
        """An invoice of any tenant as a file; a draft has no PDF."""
        return self.file(InvoiceDocument(invoice_get(invoice_id=invoice)))


class TenantInvoicesApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=InvoiceInput, responses={201: InvoiceSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Drafts a month's invoice, or updates its draft to the current ledger."""
        values = validated(InvoiceInput, request.data)
        made = invoice_draft(tenant=tenant_get(slug=slug).pk, **values)
        return Response(InvoiceSerializer(made).data, status.HTTP_201_CREATED)


class InvoiceFinalizeApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=FinalizeInput, responses={200: InvoiceSerializer})
    def post(self, request: Request, invoice: int) -> Response:
        """Numbers a draft and closes its month for good: the invoice never changes again.

        Answers 409 without a seller or the tenant's billing details.
        """
        values = validated(FinalizeInput, request.data)
        found = invoice_get(invoice_id=invoice)
        return Response(InvoiceSerializer(invoice_finalize(invoice=found, **values)).data)
