"""Adapters as JSON."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.adapters.models import Adapter, AdapterVersion, Alias, AliasChange
from controlplane.adapters.steps import STATUSES, STEPS
from controlplane.platform.http.strict import StrictSerializer


class StepSerializer(serializers.Serializer[Any]):
    name = serializers.ChoiceField(choices=list(STEPS))
    title = serializers.CharField()
    status = serializers.ChoiceField(choices=list(STATUSES))
    detail = serializers.CharField()


@extend_schema_field(StepSerializer(many=True))
class StepsField(serializers.JSONField):
    """Steps as stored. A page of 50 adapters has 600; a serializer for each took half of its time."""


class SmokeSerializer(serializers.Serializer[Any]):
    """Comparison of a generation with the adapter and one without; logarithms are natural."""

    copy = serializers.CharField(help_text="The copy that generated.")
    tokens = serializers.IntegerField(help_text="Of the prompt; each has its probability told.")
    base_mean_logprob = serializers.FloatField()
    adapter_mean_logprob = serializers.FloatField()
    mean_difference = serializers.FloatField(help_text="Mean of the tokens' absolute differences.")
    max_difference = serializers.FloatField()
    noise = serializers.FloatField(help_text="Largest difference of the base to itself, asked twice.")
    base_text = serializers.CharField()
    adapter_text = serializers.CharField()


class VersionSerializer(serializers.ModelSerializer[AdapterVersion]):
    adapter = serializers.CharField(source="adapter.name")
    steps = StepsField(read_only=True)
    smoke = SmokeSerializer(allow_null=True)

    class Meta:
        model = AdapterVersion
        fields = (
            "adapter", "number", "status", "reason", "steps", "source_uri", "sha256", "rank", "size_bytes",
            "smoke", "notes", "dataset", "run_url", "base_sha256", "created_at", "deleted_at",
        )  # fmt: skip

    source_uri = serializers.CharField(
        source="source", help_text="What it was imported from; '' for uploads."
    )


class ArmSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField(source="version.number")
    percent = serializers.IntegerField()


class AliasSerializer(serializers.ModelSerializer[Alias]):
    version = serializers.IntegerField(
        source="version.number", help_text="Of a split alias, the version that stays when the split ends."
    )
    arms = ArmSerializer(many=True, source="live_arms", help_text="Empty while the alias is not split.")
    fallback = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Alias
        fields = ("name", "version", "arms", "fallback", "moved_at")


class AdapterSerializer(serializers.ModelSerializer[Adapter]):
    base_model = serializers.CharField(source="base_model.name")
    default_version = serializers.IntegerField(
        source="default_version.number", default=None, allow_null=True, help_text="What the bare name means."
    )
    pinned = serializers.IntegerField(source="pinned.number", default=None, allow_null=True)
    versions = VersionSerializer(many=True, source="live_versions")
    fallback = serializers.ListField(child=serializers.CharField(), help_text="Of the bare name.")
    aliases = AliasSerializer(many=True, source="live_aliases")
    labels = serializers.DictField(child=serializers.CharField())

    class Meta:
        model = Adapter
        fields = (
            "name", "base_model", "default_version", "pinned", "fallback", "labels", "notes", "versions",
            "aliases", "created_at", "deleted_at",
        )  # fmt: skip


class LineageInput(StrictSerializer):
    """Lineage of a version. Omitted fields stay unchanged; "" clears."""

    notes = serializers.CharField(max_length=10_000, required=False, allow_blank=True)
    dataset = serializers.CharField(max_length=500, required=False, allow_blank=True)
    run_url = serializers.CharField(
        max_length=500,
        required=False,
        allow_blank=True,
        help_text="Of the training run: http:// or https://.",
    )
    base_sha256 = serializers.CharField(
        max_length=64, required=False, allow_blank=True, help_text="Of the checkpoint it was trained on."
    )


class VersionChange(LineageInput):
    """Changes of a version. Omitted fields stay unchanged; "" clears."""


class DefaultInput(LineageInput):
    make_default = serializers.BooleanField(
        allow_null=True,
        default=None,
        help_text="true: the bare name means the version once it is ready. false: it keeps its version. null:"
        " it keeps its version if it was called in the last 7 days, else follows the newest.",
    )


class VersionInput(DefaultInput):
    """Exactly one of files (multipart), a URI, and uploads."""

    files = serializers.ListField(
        child=serializers.FileField(allow_empty_file=True),
        required=False,
        help_text="A PEFT folder's files, or one .zip or .tar.gz of it, in parts named `files`.",
    )
    uri = serializers.CharField(
        required=False,
        max_length=800,
        help_text="hf://owner/name[@revision[/folder]], s3://bucket/prefix or file:///folder; of the last two"
        " also an archive.",
    )
    credential = serializers.CharField(
        required=False, max_length=63, help_text="Name of the source credential that the URI is read with."
    )
    uploads = serializers.ListField(
        child=serializers.CharField(max_length=32),
        required=False,
        min_length=1,
        max_length=2,
        help_text="Ids of finished uploads: one archive, or both of the adapter's files.",
    )


class AdapterInput(VersionInput):
    """Registration of an adapter's first or next version."""

    name = serializers.CharField(max_length=63)
    base_model = serializers.CharField(max_length=63)


class AdapterCheckInput(DefaultInput):
    """A registration without its files."""

    name = serializers.CharField(max_length=63)
    base_model = serializers.CharField(max_length=63)
    size_bytes = serializers.IntegerField(
        default=0, min_value=0, max_value=1 << 60, help_text="Of the adapter's files; 0 if unknown."
    )


class AdapterCheckSerializer(serializers.Serializer[Any]):
    """The version that callers of the bare name get, and whether the new version will replace it."""

    default_version = serializers.IntegerField(allow_null=True, help_text="null: none is ready.")
    becomes_default = serializers.BooleanField(help_text="The new version takes over once it is ready.")


class ArmInput(StrictSerializer):
    version = serializers.IntegerField(min_value=1)
    percent = serializers.IntegerField(min_value=1, max_value=99)


class AliasInput(StrictSerializer):
    """One version for all callers, or arms that split them."""

    version = serializers.IntegerField(min_value=1, required=False)
    arms = ArmInput(
        many=True, required=False, help_text="2 to 10 versions whose percents add up to 100; the first stays."
    )
    reason = serializers.CharField(max_length=1000, default="", allow_blank=True, help_text="Of the move.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("version" in attrs) == ("arms" in attrs):
            raise serializers.ValidationError({"version": "send either a version or arms"})
        return attrs


class FallbackInput(StrictSerializer):
    models = serializers.ListField(
        child=serializers.CharField(max_length=200), max_length=4, help_text="In order; [] turns it off."
    )


class PinInput(StrictSerializer):
    version = serializers.IntegerField(min_value=1, allow_null=True, help_text="null follows the newest.")


class AliasStateSerializer(serializers.Serializer[Any]):
    """Target of an alias: a version, or arms of `[version, percent]`."""

    version = serializers.IntegerField()
    arms = serializers.ListField(child=serializers.ListField(child=serializers.IntegerField()))


class AliasChangeSerializer(serializers.ModelSerializer[AliasChange]):
    before = AliasStateSerializer(allow_null=True, help_text="null: there was no such alias.")
    after = AliasStateSerializer(allow_null=True, help_text="null: it was removed.")

    class Meta:
        model = AliasChange
        fields = ("id", "alias", "before", "after", "reason", "by", "created_at")


class RollbackInput(StrictSerializer):
    """An empty body reverts the newest change."""

    to = serializers.IntegerField(
        required=False, min_value=1, help_text="Id of the change whose outcome is wanted."
    )
    newest = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="Id of the newest change that you saw; 409 if it is another.",
    )
    reason = serializers.CharField(max_length=1000, default="", allow_blank=True)


class AdapterChange(StrictSerializer):
    """Changes of an adapter. Omitted fields stay unchanged."""

    labels = serializers.DictField(child=serializers.CharField(allow_blank=True), required=False)
    notes = serializers.CharField(max_length=10_000, required=False, allow_blank=True)


class QuotaSerializer(StrictSerializer):
    """Quota of a tenant; null is unlimited."""

    adapters = serializers.IntegerField(allow_null=True, default=None, min_value=0, max_value=1_000_000)
    versions = serializers.IntegerField(allow_null=True, default=None, min_value=0, max_value=10_000_000)
    size_bytes = serializers.IntegerField(allow_null=True, default=None, min_value=0, max_value=1 << 60)


class QuotaUseSerializer(QuotaSerializer):
    """The quota and its use; deleted adapters count until they are purged."""

    used_adapters = serializers.IntegerField(default=0)
    used_versions = serializers.IntegerField(default=0)
    used_size_bytes = serializers.IntegerField(default=0)
