"""Adapters as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.adapters.steps import STEPS


class StepSerializer(serializers.Serializer[Any]):
    name = serializers.ChoiceField(choices=list(STEPS))
    title = serializers.CharField()
    status = serializers.ChoiceField(choices=["waiting", "running", "done", "failed"])
    detail = serializers.CharField()


class VersionSerializer(serializers.ModelSerializer[AdapterVersion]):
    adapter = serializers.CharField(source="adapter.name")
    steps = StepSerializer(many=True)

    class Meta:
        model = AdapterVersion
        fields = (
            "adapter", "number", "status", "reason", "steps", "source_uri", "sha256", "rank", "size_bytes",
            "created_at",
        )  # fmt: skip

    source_uri = serializers.CharField(
        source="source", help_text="What it was imported from; '' for uploads."
    )


class AliasSerializer(serializers.ModelSerializer[Alias]):
    version = serializers.IntegerField(source="version.number")

    class Meta:
        model = Alias
        fields = ("name", "version", "moved_at")


class AdapterSerializer(serializers.ModelSerializer[Adapter]):
    base_model = serializers.CharField(source="base_model.name")
    default_version = serializers.IntegerField(
        source="default_version.number", default=None, allow_null=True, help_text="What the bare name means."
    )
    pinned = serializers.IntegerField(source="pinned.number", default=None, allow_null=True)
    versions = VersionSerializer(many=True)
    aliases = AliasSerializer(many=True)

    class Meta:
        model = Adapter
        fields = ("name", "base_model", "default_version", "pinned", "versions", "aliases", "created_at")


class VersionInput(serializers.Serializer[Any]):
    """Files by multipart, or a URI; never both."""

    files = serializers.ListField(
        child=serializers.FileField(allow_empty_file=True),
        required=False,
        help_text="adapter_config.json and adapter_model.safetensors, both in parts named `files`.",
    )
    uri = serializers.CharField(
        required=False, max_length=1000, help_text="Folder that holds the two: file:///... or s3://..."
    )


class AdapterInput(VersionInput):
    """An adapter's first or next version."""

    name = serializers.CharField(max_length=63)
    base_model = serializers.CharField(max_length=63)


class AliasInput(serializers.Serializer[Any]):
    version = serializers.IntegerField(min_value=1)


class PinInput(serializers.Serializer[Any]):
    version = serializers.IntegerField(min_value=1, allow_null=True, help_text="null follows the newest.")
