"""Adapters as JSON."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.adapters.models import Adapter, AdapterVersion, Alias, AliasChange
from controlplane.adapters.serving import serving_options
from controlplane.adapters.steps import STATUSES, STEPS
from controlplane.platform.http.strict import StrictSerializer


class StepSerializer(serializers.Serializer[Any]):
    name = serializers.ChoiceField(choices=list(STEPS))
    title = serializers.CharField()
    status = serializers.ChoiceField(choices=list(STATUSES))
    detail = serializers.CharField()


@extend_schema_field(StepSerializer(many=True))
class StepsField(serializers.JSONField):
    """Stored validation steps, unserialized: one serializer per step took half of a list's time."""


class SmokeSerializer(serializers.Serializer[Any]):
    """Comparison of generations with and without the adapter; natural logarithms."""

    copy = serializers.CharField(help_text="Copy that ran the generations.")
    tokens = serializers.IntegerField(help_text="Number of prompt tokens with a log-probability.")
    base_mean_logprob = serializers.FloatField()
    adapter_mean_logprob = serializers.FloatField()
    mean_difference = serializers.FloatField(help_text="Mean absolute difference per token.")
    max_difference = serializers.FloatField()
    noise = serializers.FloatField(help_text="Largest difference between two runs of the base model.")
    base_text = serializers.CharField()
    adapter_text = serializers.CharField()


class VersionSerializer(serializers.ModelSerializer[AdapterVersion]):
    adapter = serializers.CharField(source="adapter.name")
    steps = StepsField(read_only=True)
    smoke = SmokeSerializer(allow_null=True)

    class Meta:
        model = AdapterVersion
        fields = (
            "adapter",
            "number",
            "status",
            "reason",
            "steps",
            "source_uri",
            "sha256",
            "rank",
            "traits",
            "size_bytes",
            "smoke",
            "notes",
            "dataset",
            "run_url",
            "base_sha256",
            "created_at",
            "deleted_at",
        )

    traits = serializers.ListField(
        child=serializers.CharField(), help_text="What the version needs of a copy beyond plain pairs."
    )
    source_uri = serializers.CharField(
        source="source", help_text="URI that the version was imported from; '' for uploads."
    )


class ServingSerializer(serializers.Serializer[Any]):
    """One engine or copy, with its ability to serve the version."""

    kind = serializers.ChoiceField(
        choices=["engine", "copy", "deployment"], help_text="deployment: one that has no copy at this moment."
    )
    name = serializers.CharField()
    serves = serializers.ChoiceField(
        choices=["yes", "no", "unknown"], help_text="unknown: the copy gets the version's requests, too."
    )
    reason = serializers.CharField(help_text="Why not; '' for yes.")


class VersionDetailSerializer(VersionSerializer):
    """A version, with where it can be served."""

    serving = serializers.SerializerMethodField(
        help_text="Engines and copies that can serve a ready version, and why the others cannot."
    )

    class Meta(VersionSerializer.Meta):
        fields = (*VersionSerializer.Meta.fields, "serving")  # type: ignore[assignment]

    @extend_schema_field(ServingSerializer(many=True))
    def get_serving(self, version: AdapterVersion) -> Any:
        if version.status != AdapterVersion.Status.READY:
            return []
        options = serving_options(base_model=version.adapter.base_model, ref=version.ref())
        return ServingSerializer(options, many=True).data


class ArmSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField(source="version.number")
    percent = serializers.IntegerField()


class AliasSerializer(serializers.ModelSerializer[Alias]):
    version = serializers.IntegerField(
        source="version.number",
        help_text="Target version; for a split alias, the version that remains when the split ends.",
    )
    arms = ArmSerializer(
        many=True, source="live_arms", help_text="Arms of the split; empty if the alias is not split."
    )
    fallback = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Alias
        fields = ("name", "version", "arms", "fallback", "moved_at")


class AdapterSerializer(serializers.ModelSerializer[Adapter]):
    base_model = serializers.CharField(source="base_model.name")
    default_version = serializers.IntegerField(
        source="default_version.number",
        default=None,
        allow_null=True,
        help_text="Version that the bare name refers to.",
    )
    pinned = serializers.IntegerField(source="pinned.number", default=None, allow_null=True)
    versions = VersionSerializer(many=True, source="live_versions")
    fallback = serializers.ListField(
        child=serializers.CharField(), help_text="Fallback models of the bare name, in order."
    )
    aliases = AliasSerializer(many=True, source="live_aliases")
    labels = serializers.DictField(child=serializers.CharField())

    class Meta:
        model = Adapter
        fields = (
            "name",
            "base_model",
            "default_version",
            "pinned",
            "fallback",
            "labels",
            "notes",
            "versions",
            "aliases",
            "created_at",
            "deleted_at",
        )


class LineageInput(StrictSerializer):
    """Lineage of a version. Omitted fields stay unchanged; "" clears."""

    notes = serializers.CharField(max_length=10_000, required=False, allow_blank=True)
    dataset = serializers.CharField(max_length=500, required=False, allow_blank=True)
    run_url = serializers.CharField(
        max_length=500,
        required=False,
        allow_blank=True,
        help_text="URL of the training run: http:// or https://.",
    )
    base_sha256 = serializers.CharField(
        max_length=64,
        required=False,
        allow_blank=True,
        help_text="SHA-256 digest of the base checkpoint used in training.",
    )


class VersionChange(LineageInput):
    """Changes of a version. Omitted fields stay unchanged; "" clears."""


class DefaultInput(LineageInput):
    make_default = serializers.BooleanField(
        allow_null=True,
        default=None,
        help_text="true: the bare name refers to the version once it is ready. false: it keeps its "
        "version. null:"
        " it keeps its version if it was called in the last 7 days, else it follows the newest.",
    )


class VersionInput(DefaultInput):
    """Registration of a version from exactly one of files (multipart), a URI, and uploads."""

    files = serializers.ListField(
        child=serializers.FileField(allow_empty_file=True),
        required=False,
        help_text="A PEFT folder's files, or one .zip or .tar.gz of it, in parts named `files`.",
    )
    uri = serializers.CharField(
        required=False,
        max_length=800,
        help_text="hf://owner/name[@revision[/folder]], s3://bucket/prefix or file:///folder; the last "
        "two can also name an archive.",
    )
    credential = serializers.CharField(
        required=False, max_length=63, help_text="Name of the source credential used to read the URI."
    )
    uploads = serializers.ListField(
        child=serializers.CharField(max_length=32),
        required=False,
        min_length=1,
        max_length=2,
        help_text="IDs of completed uploads: one archive, or both adapter files.",
    )


class AdapterInput(VersionInput):
    """Registration of an adapter's first or next version."""

    name = serializers.CharField(max_length=63)
    base_model = serializers.CharField(max_length=63)


class AdapterCheckInput(DefaultInput):
    """Registration to check, without files."""

    name = serializers.CharField(max_length=63)
    base_model = serializers.CharField(max_length=63)
    size_bytes = serializers.IntegerField(
        default=0,
        min_value=0,
        max_value=1 << 60,
        help_text="Total bytes of the adapter's files; 0 if unknown.",
    )


class AdapterCheckSerializer(serializers.Serializer[Any]):
    """Default version of the adapter, and whether the new version will replace it."""

    default_version = serializers.IntegerField(
        allow_null=True, help_text="Version that the bare name refers to; null if none is ready."
    )
    becomes_default = serializers.BooleanField(
        help_text="True if the new version becomes the default once it is ready."
    )


class ArmInput(StrictSerializer):
    version = serializers.IntegerField(min_value=1)
    percent = serializers.IntegerField(min_value=1, max_value=99)


class AliasInput(StrictSerializer):
    """Target of an alias: one version, or the arms of a split."""

    version = serializers.IntegerField(min_value=1, required=False)
    arms = ArmInput(
        many=True,
        required=False,
        help_text="2 to 10 versions with percents that add up to 100; the first remains after the split.",
    )
    reason = serializers.CharField(
        max_length=1000, default="", allow_blank=True, help_text="Reason for the change."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("version" in attrs) == ("arms" in attrs):
            raise serializers.ValidationError({"version": "send either a version or arms"})
        return attrs


class FallbackInput(StrictSerializer):
    models = serializers.ListField(
        child=serializers.CharField(max_length=200),
        max_length=4,
        help_text="Models in order of preference; [] turns the fallback off.",
    )


class PinInput(StrictSerializer):
    version = serializers.IntegerField(
        min_value=1, allow_null=True, help_text="Version to pin; null follows the newest ready version."
    )


class AliasStateSerializer(serializers.Serializer[Any]):
    """Target of an alias: a version, or arms of `[version, percent]`."""

    version = serializers.IntegerField()
    arms = serializers.ListField(child=serializers.ListField(child=serializers.IntegerField()))


class AliasChangeSerializer(serializers.ModelSerializer[AliasChange]):
    before = AliasStateSerializer(
        allow_null=True, help_text="Target before the change; null if the alias did not exist."
    )
    after = AliasStateSerializer(
        allow_null=True, help_text="Target after the change; null if the alias was removed."
    )

    class Meta:
        model = AliasChange
        fields = ("id", "alias", "before", "after", "reason", "by", "created_at")


class RollbackInput(StrictSerializer):
    """An empty body reverts the newest change."""

    to = serializers.IntegerField(
        required=False, min_value=1, help_text="Restore the target set by the change with this ID."
    )
    newest = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="ID of the newest change that the client has read; 409 if a newer one exists.",
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
