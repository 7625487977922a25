"""Seller and buyer of documents in the REST API: copies of their details at that time."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class SellerNamed(serializers.Serializer[Any]):
    """The seller's details."""

    legal_name = serializers.CharField()
    address = serializers.CharField(help_text="Line by line.")
    contact = serializers.CharField(allow_blank=True)
    tax_number = serializers.CharField(allow_blank=True)
    registration = serializers.CharField(allow_blank=True)
    payment_text = serializers.CharField(allow_blank=True)


class BuyerNamed(serializers.Serializer[Any]):
    """The billed tenant's details."""

    legal_name = serializers.CharField()
    address = serializers.CharField(help_text="Line by line.")
    contact = serializers.CharField(allow_blank=True)
    reference = serializers.CharField(allow_blank=True)


class PartiesSerializer(serializers.Serializer[Any]):
    """Seller and buyer of a document; null where no details were stated."""

    seller = SellerNamed(read_only=True, allow_null=True)
    buyer = BuyerNamed(read_only=True, allow_null=True)
