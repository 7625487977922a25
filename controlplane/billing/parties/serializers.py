"""How documents' sellers and buyers stand in the REST API: copies, as they were then."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class SellerNamed(serializers.Serializer[Any]):
    """Who sells."""

    legal_name = serializers.CharField()
    address = serializers.CharField(help_text="Line by line.")
    contact = serializers.CharField(allow_blank=True)
    tax_number = serializers.CharField(allow_blank=True)
    registration = serializers.CharField(allow_blank=True)
    payment_text = serializers.CharField(allow_blank=True)


class BuyerNamed(serializers.Serializer[Any]):
    """Who is billed."""

    legal_name = serializers.CharField()
    address = serializers.CharField(help_text="Line by line.")
    contact = serializers.CharField(allow_blank=True)
    reference = serializers.CharField(allow_blank=True)


class PartiesSerializer(serializers.Serializer[Any]):
    """Both of a document; null where nothing was stated."""

    seller = SellerNamed(read_only=True, allow_null=True)
    buyer = BuyerNamed(read_only=True, allow_null=True)
