"""REST of credit notes: a tenant reads its own, staff issues them."""

from __future__ import annotations

from typing import Final

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.selectors import credit_note_get, credit_note_list, note_line_list
from controlplane.billing.credit_notes.serializers import (
    CreditNoteInput,
    CreditNoteLineSerializer,
    CreditNoteSerializer,
    VoidInput,
)
from controlplane.billing.credit_notes.services import credit_note_issue, credit_note_void
from controlplane.billing.filters import CreditNoteFilter, FleetCreditNoteFilter
from controlplane.billing.invoices.api import FILE, DocumentFileApi
from controlplane.billing.invoices.selectors import invoice_get
from controlplane.billing.models import CreditNote, CreditNoteLine
from controlplane.platform.http.object_api import RetrieveApi
from controlplane.platform.http.strict import validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission

_MAY: Final = tenant_may(Permission.BILLING_READ)


class CreditNotesApi(generics.ListAPIView[CreditNote]):
    """The tenant's credit notes, newest first."""

    permission_classes = (_MAY,)
    serializer_class = CreditNoteSerializer
    filterset_class = CreditNoteFilter
    queryset = CreditNote.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[CreditNote]:
        return credit_note_list(tenant=request_tenant(self.request).pk)


class CreditNoteApi(RetrieveApi[CreditNote]):
    """A credit note of the tenant: net + tax = pre-payment + post-payment, to the nano-unit."""

    permission_classes = (_MAY,)
    serializer_class = CreditNoteSerializer

    def get_object(self) -> CreditNote:
        tenant = request_tenant(self.request).pk
        return credit_note_get(credit_note_id=self.kwargs["credit_note"], tenant=tenant)


class CreditNoteLinesApi(generics.ListAPIView[CreditNoteLine]):
    """The credit note's lines; `invoice_position` is null for an amount on the invoice as a whole."""

    permission_classes = (_MAY,)
    serializer_class = CreditNoteLineSerializer
    queryset = CreditNoteLine.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[CreditNoteLine]:
        tenant = request_tenant(self.request).pk
        note = credit_note_get(credit_note_id=self.kwargs["credit_note"], tenant=tenant)
        return note_line_list(credit_note=note)


class CreditNoteFileApi(DocumentFileApi):
    permission_classes = (_MAY,)

    @FILE
    def get(self, request: Request, credit_note: int) -> StreamingHttpResponse:
        """The credit note as a file."""
        found = credit_note_get(credit_note_id=credit_note, tenant=request_tenant(request).pk)
        return self.file(CreditNoteDocument(found))


class FleetCreditNotesApi(generics.ListAPIView[CreditNote]):
    """Every tenant's credit notes, newest first."""

    permission_classes = (Staff,)
    serializer_class = CreditNoteSerializer
    filterset_class = FleetCreditNoteFilter
    queryset = CreditNote.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[CreditNote]:
        return credit_note_list(tenant=None)


class FleetCreditNoteApi(RetrieveApi[CreditNote]):
    """A credit note of any tenant."""

    permission_classes = (Staff,)
    serializer_class = CreditNoteSerializer

    def get_object(self) -> CreditNote:
        return credit_note_get(credit_note_id=self.kwargs["credit_note"])


class CreditNoteVoidApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=VoidInput, responses={201: CreditNoteSerializer})
    def post(self, request: Request, credit_note: int) -> Response:
        """Voids a credit note in full by issuing another one, which is returned; both keep their numbers."""
        values = validated(VoidInput, request.data)
        made = credit_note_void(credit_note=credit_note_get(credit_note_id=credit_note), **values)
        return Response(CreditNoteSerializer(made).data, status.HTTP_201_CREATED)


class FleetCreditNoteFileApi(DocumentFileApi):
    permission_classes = (Staff,)

    @FILE
    def get(self, request: Request, credit_note: int) -> StreamingHttpResponse:
        """A credit note of any tenant as a file."""
        return self.file(CreditNoteDocument(credit_note_get(credit_note_id=credit_note)))


class InvoiceCreditNotesApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=CreditNoteInput, responses={201: CreditNoteSerializer})
    def post(self, request: Request, invoice: int) -> Response:
        """Credits part of a finalized invoice, or all that remains of it, with its tax; final at once."""
        values = validated(CreditNoteInput, request.data)
        if "lines" in values:
            values["lines"] = {line["position"]: line["amount_nano"] for line in values["lines"]}
        made = credit_note_issue(invoice=invoice_get(invoice_id=invoice), **values)
        return Response(CreditNoteSerializer(made).data, status.HTTP_201_CREATED)
