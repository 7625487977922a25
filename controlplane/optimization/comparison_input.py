"""Input serializers of comparisons; `optimizer` validates the same fields again."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.optimization.instance_rates import ON_DEMAND, PLANS, REGION
from controlplane.optimization.models import Machine
from controlplane.optimization.traces import MOST_ROWS, rows_checked
from controlplane.platform.http.strict import StrictSerializer


class PriceInput(StrictSerializer):
    """Price of the machine per hour, and list prices of a million input and output tokens.

    Give `hour`, or an `instance_type` whose rate in the table of instance prices applies.
    """

    hour = serializers.FloatField(min_value=0, required=False)
    instance_type = serializers.CharField(max_length=40, required=False)
    region = serializers.CharField(
        max_length=30, required=False, help_text=f"Of `instance_type`. Default: {REGION}."
    )
    plan = serializers.ChoiceField(
        choices=PLANS, required=False, help_text="Of `instance_type`. Default: on_demand."
    )
    currency = serializers.CharField(max_length=3, required=False)
    discount = serializers.FloatField(min_value=0, max_value=0.99, required=False)
    input = serializers.FloatField(min_value=0, required=False)
    output = serializers.FloatField(min_value=0, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require one source of the hourly price, and both list prices or neither."""
        if ("hour" in attrs) == ("instance_type" in attrs):
            raise serializers.ValidationError({"hour": ["give either hour or instance_type"]})
        if "hour" in attrs and (alone := [name for name in ("region", "plan") if name in attrs]):
            raise serializers.ValidationError({alone[0]: ["requires instance_type"]})
        if "instance_type" in attrs and "currency" in attrs:
            raise serializers.ValidationError({"currency": ["is that of the table of instance prices"]})
        if attrs.get("discount") and attrs.get("plan", ON_DEMAND) != ON_DEMAND:
            raise serializers.ValidationError({"discount": ["excludes plan: the plan's rate includes it"]})
        if ("input" in attrs) != ("output" in attrs):
            raise serializers.ValidationError({"input": ["input and output go together"]})
        return attrs


class ComparedArmInput(StrictSerializer):
    variant = serializers.CharField(max_length=63, default="", allow_blank=True)
    name = serializers.CharField(max_length=63, default="", allow_blank=True)
    price = PriceInput(required=False, help_text="Price of the machine for this arm.")


class ComparedAdapterInput(StrictSerializer):
    """An adapter version, which every arm serves."""

    engine_name = serializers.CharField(max_length=300, help_text="Engine name of a routed version.")
    prompts = serializers.CharField(
        max_length=64,
        required=False,
        help_text="SHA-256 of a prompt set for its quality. Default: the common prompts.",
    )


class LoadInput(StrictSerializer):
    """Load of the measurement: concurrency, or a trace that is replayed."""

    concurrency = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=256),
        required=False,
        min_length=1,
        max_length=16,
    )
    rounds = serializers.IntegerField(min_value=0, max_value=1000, required=False)
    warm_up = serializers.IntegerField(min_value=0, max_value=100, required=False)
    requests = serializers.IntegerField(min_value=1, max_value=1000, required=False)
    max_tokens = serializers.IntegerField(min_value=1, max_value=8192, required=False)
    ignore_eos = serializers.BooleanField(required=False)
    adapters = serializers.BooleanField(
        required=False, help_text="Whether requests cycle through the adapters."
    )
    trace = serializers.ChoiceField(
        choices=[("bundled", "bundled")],
        required=False,
        help_text="Recorded request lengths that replace prompts.",
    )
    lengths = serializers.ListField(
        child=serializers.ListField(
            child=serializers.FloatField(min_value=0, max_value=1e9), min_length=2, max_length=3
        ),
        required=False,
        min_length=1,
        max_length=MOST_ROWS,
        help_text="Custom trace: prompt tokens and completion tokens per request and, if `speeds` replays"
        " arrivals, seconds since the start of the trace.",
    )
    speeds = serializers.ListField(
        child=serializers.FloatField(min_value=0.001, max_value=1000),
        required=False,
        min_length=1,
        max_length=8,
        help_text="Speed factors at which the trace's arrivals are replayed; replaces concurrency.",
    )
    prompt_scale = serializers.IntegerField(min_value=1, max_value=10_000, required=False)
    output_scale = serializers.IntegerField(min_value=1, max_value=10_000, required=False)
    most_prompt = serializers.IntegerField(min_value=1, max_value=131_072, required=False)

    def validate_lengths(self, rows: list[list[float]]) -> list[list[float]]:
        """Require whole tokens, and arrival times that do not decrease."""
        return rows_checked(rows)


class ScorerInput(StrictSerializer):
    kind = serializers.ChoiceField(choices=["none", "exact", "regex", "json_schema"])
    pattern = serializers.CharField(max_length=2000, required=False)
    schema = serializers.DictField(required=False)


class QualityInput(StrictSerializer):
    """How the quality of the answers is measured."""

    most_texts = serializers.IntegerField(min_value=0, max_value=10_000, required=False)
    text_tokens = serializers.IntegerField(min_value=2, max_value=8192, required=False)
    prompts = serializers.IntegerField(min_value=0, max_value=10_000, required=False)
    answer_tokens = serializers.IntegerField(min_value=1, max_value=4096, required=False)
    scorer = ScorerInput(required=False)
    samples = serializers.IntegerField(min_value=0, max_value=50, required=False)


class ComparisonInput(StrictSerializer):
    """A comparison. The first arm is the baseline that the others are compared with."""

    base_model = serializers.CharField(max_length=63)
    arms = ComparedArmInput(many=True)
    name = serializers.CharField(max_length=100, default="", allow_blank=True)
    machine = serializers.ChoiceField(choices=Machine.choices, required=False)
    prompts = serializers.CharField(max_length=64, required=False, help_text="SHA-256 of a prompt set.")
    texts = serializers.CharField(
        max_length=64, required=False, help_text="SHA-256 of a prompt set of held-out texts for perplexity."
    )
    adapters = ComparedAdapterInput(
        many=True, required=False, help_text="Adapters whose change in quality is reported for every arm."
    )
    load = LoadInput(required=False)
    quality = QualityInput(required=False)
    price = PriceInput(required=False)
    seed = serializers.IntegerField(min_value=0, max_value=2**31 - 1, required=False)
