"""REST representation of billing rows. Amounts are integers of nano-units (1e-9) of the currency."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from controlplane.billing import items
from controlplane.billing.in_force import Holding, MeterPrice, When
from controlplane.billing.ledger.selectors import Balance
from controlplane.billing.models import (
    CreditGrant,
    HostingPrice,
    Invoice,
    InvoiceLine,
    JournalEntry,
    Price,
    PriceBook,
    PriceBookTerm,
)
from controlplane.billing.parties.serializers import PartiesSerializer
from controlplane.platform.http.strict import StrictSerializer

_NANO: dict[str, Any] = {"min_value": 0, "max_value": (1 << 62) - 1}


class PriceSerializer(StrictSerializer, serializers.ModelSerializer[Price]):
    class Meta:
        model = Price
        fields = (
            "base_model",
            "adapter",
            "backend",
            "effective_from",
            "input_nano",
            "cached_input_nano",
            "output_nano",
            "reasoning_nano",
            "request_nano",
        )


class HostingPriceSerializer(StrictSerializer, serializers.ModelSerializer[HostingPrice]):
    kind = serializers.CharField(help_text=", ".join(HostingPrice.Kind.values))

    class Meta:
        model = HostingPrice
        fields = ("kind", "base_model", "adapter", "backend", "effective_from", "nano")


class TermSerializer(StrictSerializer, serializers.ModelSerializer[PriceBookTerm]):
    class Meta:
        model = PriceBookTerm
        fields = ("id", "tenant", "starts", "ends")


class TermInput(StrictSerializer):
    tenant = serializers.CharField(
        max_length=63, required=False, allow_blank=True, help_text="Tenant id; omitted or '' for all tenants."
    )
    starts = serializers.DateField(help_text="First UTC day.")
    ends = serializers.DateField(
        required=False, allow_null=True, help_text="Last UTC day, included; null for no end."
    )


class TermChange(StrictSerializer):
    ends = serializers.DateField(allow_null=True, help_text="Last UTC day; null for no end.")


class PriceBookSerializer(StrictSerializer, serializers.ModelSerializer[PriceBook]):
    prices = PriceSerializer(many=True, read_only=True)
    hosting_prices = HostingPriceSerializer(many=True, read_only=True)
    terms = TermSerializer(many=True, read_only=True)

    class Meta:
        model = PriceBook
        fields = ("name", "currency", "is_default", "prices", "hosting_prices", "terms")
        extra_kwargs: ClassVar[dict[str, Any]] = {"name": {"validators": []}}


class PriceBookInput(StrictSerializer):
    name = serializers.CharField(max_length=63)
    currency = serializers.CharField(max_length=3, default="USD")
    is_default = serializers.BooleanField(default=False, help_text="Applies to all tenants from today (UTC).")
    starts = serializers.DateField(
        required=False, allow_null=True, help_text="First UTC day in force; null if not in force yet."
    )
    tenant = serializers.CharField(
        max_length=63,
        required=False,
        allow_blank=True,
        help_text="With starts: the tenant; '' for all tenants.",
    )


class HoldingSerializer(serializers.Serializer[Holding]):
    book = serializers.CharField(source="term.book.name")
    tenant = serializers.CharField(source="term.tenant", allow_blank=True, help_text="'' for all tenants.")
    starts = serializers.DateField(source="term.starts")
    ends = serializers.DateField(source="term.ends", allow_null=True)
    when = serializers.ChoiceField(choices=[when.value for when in When])


class MeterPriceSerializer(serializers.Serializer[MeterPrice]):
    item = serializers.ChoiceField(choices=list(items.PER))
    base_model = serializers.CharField(allow_blank=True, help_text="'' for all.")
    adapter = serializers.CharField(allow_blank=True, help_text="`<tenant>/<adapter>`; '' for all.")
    backend = serializers.CharField(allow_blank=True, help_text="'' for all.")
    nano = serializers.IntegerField(help_text="Nano-units per token, request or hour.")
    book = serializers.CharField()
    since = serializers.DateField()


class InForceSerializer(serializers.Serializer[Any]):
    day = serializers.DateField()
    tenant = serializers.CharField(allow_blank=True)
    terms = HoldingSerializer(many=True)
    prices = MeterPriceSerializer(many=True)


class BalanceSerializer(serializers.Serializer[Balance]):
    tenant = serializers.CharField()
    currency = serializers.CharField()
    unbilled = serializers.IntegerField(help_text="Usage that is not on a finalized invoice yet.")
    receivable = serializers.IntegerField(help_text="Invoiced and unpaid.")
    prepaid = serializers.IntegerField(
        help_text="Prepaid and unused. Negative if a payment was reversed after it was used, until the "
        "next invoice charges it."
    )
    credit = serializers.IntegerField(help_text="Granted credits that are valid today and unused.")
    available = serializers.IntegerField(
        help_text="Usage that the prepaid balance, less tax, and credits still cover."
    )
    unpriced = serializers.SerializerMethodField(
        help_text="True if usage that is not invoiced yet has no price; the amounts exclude it."
    )

    def get_unpriced(self, found: Balance) -> bool:
        return bool(self.context["unpriced"])


class JournalEntrySerializer(serializers.ModelSerializer[JournalEntry]):
    kind = serializers.CharField()
    debit = serializers.CharField()
    credit = serializers.CharField()
    reverses = serializers.IntegerField(source="reverses.number", allow_null=True, default=None)
    invoice = serializers.IntegerField(source="invoice_id", allow_null=True)
    credit_note = serializers.IntegerField(source="credit_note_id", allow_null=True)
    grant = serializers.IntegerField(source="grant_id", allow_null=True)

    class Meta:
        model = JournalEntry
        fields = (
            "number",
            "at",
            "day",
            "kind",
            "debit",
            "credit",
            "amount_nano",
            "currency",
            "reverses",
            "invoice",
            "credit_note",
            "grant",
            "memo",
        )


class CreditSerializer(serializers.ModelSerializer[CreditGrant]):
    class Meta:
        model = CreditGrant
        fields = ("id", "amount_nano", "starts", "expires_on", "note", "created_at")


class CreditInput(StrictSerializer):
    amount_nano = serializers.IntegerField(**_NANO)
    starts = serializers.DateField(
        required=False, allow_null=True, help_text="First UTC day. Defaults to today."
    )
    expires_on = serializers.DateField(
        required=False, allow_null=True, help_text="Last UTC day, included; null for no end."
    )
    note = serializers.CharField(max_length=200, required=False, allow_blank=True)


class PaymentInput(StrictSerializer):
    amount_nano = serializers.IntegerField(**_NANO)
    invoice = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=(1 << 62),
        help_text="Invoice id. Null records a prepayment.",
    )
    memo = serializers.CharField(max_length=200, required=False, allow_blank=True)


class ReversalInput(StrictSerializer):
    memo = serializers.CharField(max_length=200, help_text="Why.")


class InvoiceSerializer(PartiesSerializer, serializers.ModelSerializer[Invoice]):
    title = serializers.CharField(read_only=True)
    status = serializers.CharField()
    net_nano = serializers.IntegerField(help_text="Amount due for usage, without tax.")
    tax_kind = serializers.CharField(
        help_text="taxed, reverse_charge or exempt; empty without a tax treatment."
    )

    class Meta:
        model = Invoice
        fields = (
            "id",
            "tenant",
            "month",
            "number",
            "title",
            "status",
            "currency",
            "lines_nano",
            "carried_in_nano",
            "credits_nano",
            "net_nano",
            "tax_nano",
            "tax_kind",
            "tax_label",
            "tax_rate_percent",
            "tax_number",
            "tax_text",
            "prepaid_nano",
            "shortfall_nano",
            "due_nano",
            "carried_out_nano",
            "unpriced",
            "seller",
            "buyer",
            "drafted_at",
            "finalized_at",
        )


class InvoiceLineSerializer(serializers.ModelSerializer[InvoiceLine]):
    adjusts = serializers.BooleanField(help_text="True for usage of a month that was already closed.")

    class Meta:
        model = InvoiceLine
        fields = (
            "position",
            "month",
            "adjusts",
            "project",
            "key_id",
            "key_name",
            "adapter",
            "base_model",
            "backend",
            "item",
            "quantity",
            "unit_nano",
            "per",
            "amount_nano",
        )


class InvoiceInput(StrictSerializer):
    month = serializers.DateField(help_text="First day of the UTC month, such as 2026-11-01.")


class FinalizeInput(StrictSerializer):
    allow_unpriced = serializers.BooleanField(
        default=False, help_text="Finalize although some usage has no price."
    )
    due_nano = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=2**63 - 1,
        help_text="Amount due that you confirm. Returns 409 if the invoice's amount has changed.",
    )
