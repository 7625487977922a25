"""REST representation of credit notes. Amounts are integers of nano-units (1e-9) of the currency."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from controlplane.billing.models import CreditNote, CreditNoteLine
from controlplane.billing.parties.serializers import PartiesSerializer
from controlplane.platform.http.strict import StrictSerializer

MOST_LINES: Final = 1000
"""Most lines of one credit note, unless it is issued on the invoice as a whole."""
_NANO: dict[str, Any] = {"min_value": 1, "max_value": (1 << 62) - 1}


class CreditNoteSerializer(PartiesSerializer, serializers.ModelSerializer[CreditNote]):
    title = serializers.CharField(read_only=True)
    reason = serializers.CharField(help_text=", ".join(CreditNote.Reason.values))
    invoice = serializers.IntegerField(source="invoice_id", help_text="Its id.")
    invoice_title = serializers.CharField(source="invoice.title")
    total_nano = serializers.IntegerField(help_text="Net amount plus tax.")
    voids = serializers.IntegerField(
        source="voids_id", allow_null=True, help_text="Id of the credit note that this one voids."
    )
    voided_by = serializers.IntegerField(
        source="voided_by.pk",
        allow_null=True,
        default=None,
        help_text="Id of the credit note that voids this one.",
    )
    post_payment_as = serializers.CharField(help_text=", ".join(CreditNote.PostPayment.values))

    class Meta:
        model = CreditNote
        fields = (
            "id",
            "tenant",
            "number",
            "title",
            "invoice",
            "invoice_title",
            "reason",
            "memo",
            "currency",
            "net_nano",
            "tax_nano",
            "total_nano",
            "pre_payment_nano",
            "post_payment_nano",
            "post_payment_as",
            "voids",
            "voided_by",
            "seller",
            "buyer",
            "issued_at",
        )


class CreditNoteLineSerializer(serializers.ModelSerializer[CreditNoteLine]):
    invoice_position = serializers.IntegerField(
        source="invoice_line.position",
        allow_null=True,
        default=None,
        help_text="Null for the invoice as a whole.",
    )
    item = serializers.CharField(source="invoice_line.item", default="")
    adapter = serializers.CharField(source="invoice_line.adapter", default="")
    base_model = serializers.CharField(source="invoice_line.base_model", default="")
    key_id = serializers.CharField(source="invoice_line.key_id", default="")
    key_name = serializers.CharField(source="invoice_line.key_name", allow_null=True, default="")

    class Meta:
        model = CreditNoteLine
        fields = (
            "position",
            "invoice_position",
            "item",
            "adapter",
            "base_model",
            "key_id",
            "key_name",
            "amount_nano",
        )


class CreditedLineInput(StrictSerializer):
    position = serializers.IntegerField(
        min_value=1, max_value=(1 << 31) - 1, help_text="Position of the invoice line."
    )
    amount_nano = serializers.IntegerField(
        **_NANO,
        required=False,
        allow_null=True,
        default=None,
        help_text="Without tax. Null credits all that remains.",
    )


class VoidInput(StrictSerializer):
    memo = serializers.CharField(max_length=500, help_text="The reason; it is printed on the document.")


class CreditNoteInput(StrictSerializer):
    reason = serializers.ChoiceField(choices=CreditNote.Reason.values)
    memo = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")
    amount_nano = serializers.IntegerField(
        **_NANO,
        required=False,
        allow_null=True,
        default=None,
        help_text="Amount on the invoice as a whole, without tax. Null without lines credits all that "
        "remains.",
    )
    lines = CreditedLineInput(many=True, required=False, allow_empty=False)
    post_payment_as = serializers.ChoiceField(
        choices=CreditNote.PostPayment.values,
        default="balance",
        help_text="Where the amount already paid goes.",
    )

    def validate_lines(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(lines) > MOST_LINES:
            raise serializers.ValidationError(
                f"at most {MOST_LINES} lines: omit them to credit the remainder"
            )
        if len({line["position"] for line in lines}) < len(lines):
            raise serializers.ValidationError("each position can appear only once")
        return lines
