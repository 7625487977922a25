"""REST of the ledger: a tenant reads its own; staff grants credits, books payments and corrects."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.filters import EntryFilter
from controlplane.billing.invoices.selectors import invoice_get
from controlplane.billing.ledger.credits import credit_grant, entry_reverse, payment_record
from controlplane.billing.ledger.selectors import balance, books_of, entry_get, entry_list, grant_list
from controlplane.billing.models import CreditGrant, JournalEntry
from controlplane.billing.serializers import (
    BalanceSerializer,
    CreditInput,
    CreditSerializer,
    JournalEntrySerializer,
    PaymentInput,
    ReversalInput,
)
from controlplane.billing.unpriced import unbilled_unpriced
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get


class BalanceApi(ObjectApi[Any]):
    permission_classes = (tenant_may(Permission.BILLING_READ),)
    serializer_class = BalanceSerializer

    @conditional()
    def get(self, request: Request) -> Response:
        """The tenant's balances, in nano-units. Usage of the last minutes may be missing."""
        return _balance(request_tenant(request).pk)


class TenantBalanceApi(ObjectApi[Any]):
    permission_classes = (Staff,)
    serializer_class = BalanceSerializer

    @conditional()
    def get(self, request: Request, slug: str) -> Response:
        """A tenant's balances, in nano-units."""
        return _balance(books_of(slug=slug))


class JournalApi(generics.ListAPIView[JournalEntry]):
    """The tenant's journal, newest first: each entry moves an amount from account `credit` to `debit`."""

    permission_classes = (tenant_may(Permission.BILLING_READ),)
    serializer_class = JournalEntrySerializer
    filterset_class = EntryFilter
    queryset = JournalEntry.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[JournalEntry]:
        return entry_list(tenant=request_tenant(self.request).pk)


class CreditsApi(generics.ListAPIView[CreditGrant]):
    """Credits granted to the tenant, newest first."""

    permission_classes = (tenant_may(Permission.BILLING_READ),)
    serializer_class = CreditSerializer
    queryset = CreditGrant.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[CreditGrant]:
        return grant_list(tenant=request_tenant(self.request).pk)


class TenantJournalApi(generics.ListAPIView[JournalEntry]):
    """A tenant's journal, newest first; also of a deleted tenant."""

    permission_classes = (Staff,)
    serializer_class = JournalEntrySerializer
    filterset_class = EntryFilter
    queryset = JournalEntry.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[JournalEntry]:
        return entry_list(tenant=books_of(slug=self.kwargs["slug"]))


class TenantCreditsApi(generics.ListAPIView[CreditGrant]):
    """Credits granted to a tenant, newest first."""

    permission_classes = (Staff,)
    serializer_class = CreditSerializer
    queryset = CreditGrant.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[CreditGrant]:
        return grant_list(tenant=books_of(slug=self.kwargs["slug"]))

    @idempotent()
    @extend_schema(request=CreditInput, responses={201: CreditSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Grants a credit, which pays usage of its days before any other payment."""
        values = validated(CreditInput, request.data)
        grant = credit_grant(tenant=tenant_get(slug=slug), **values)
        return Response(CreditSerializer(grant).data, status.HTTP_201_CREATED)


class TenantPaymentsApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=PaymentInput, responses={201: JournalEntrySerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Books a received payment for a finalized invoice (also of a deleted tenant), or as a top-up."""
        values = validated(PaymentInput, request.data)
        if (invoice_id := values.pop("invoice", None)) is None:
            entry = payment_record(tenant=tenant_get(slug=slug), **values)
        else:
            invoice = invoice_get(invoice_id=invoice_id, tenant=books_of(slug=slug))
            entry = payment_record(tenant=invoice.tenant, invoice=invoice, **values)
        return Response(JournalEntrySerializer(entry).data, status.HTTP_201_CREATED)


class EntryReversalApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=ReversalInput, responses={201: JournalEntrySerializer})
    def post(self, request: Request, slug: str, number: int) -> Response:
        """Reverses a deposit, payment or grant by an entry with debit and credit swapped."""
        values = validated(ReversalInput, request.data)
        entry = entry_get(tenant=books_of(slug=slug), number=number)
        undone = entry_reverse(entry=entry, **values)
        return Response(JournalEntrySerializer(undone).data, status.HTTP_201_CREATED)


def _balance(tenant: str) -> Response:
    unpriced = unbilled_unpriced(tenant=tenant)
    return Response(BalanceSerializer(balance(tenant=tenant), context={"unpriced": unpriced}).data)
