"""Serializers of metrics and alarms."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.metering.adapter_metrics import PERCENTILES, AdapterMetrics, Metrics
from controlplane.monitoring.models import Alarm, AlarmChange, Comparison, Metric, MissingData, State
from controlplane.monitoring.services import PERIODS
from controlplane.platform.http.strict import StrictSerializer


class PercentilesSerializer(serializers.Serializer[Any]):
    """Nearest-rank percentiles in milliseconds, within 2 percent; null without measurements."""

    p50 = serializers.FloatField(allow_null=True)
    p95 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)


class MetricsSerializer(serializers.Serializer[Metrics]):
    requests = serializers.IntegerField(help_text="Attempts: each retry or fallback counts.")
    failed = serializers.IntegerField(help_text="Attempts that the copy or the gateway failed.")
    error_rate = serializers.FloatField(allow_null=True, help_text="Failed attempts in percent.")
    errors = serializers.DictField(  # type: ignore[assignment]  # a field, not the validation's errors
        child=serializers.IntegerField(), help_text="Failed attempts by error code."
    )
    client_errors = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Attempts that failed because the request was invalid, by error code.",
    )
    cancelled = serializers.IntegerField(help_text="Attempts cancelled by the client.")
    prompt_tokens = serializers.IntegerField(help_text="Includes cached tokens.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    ttft_ms = serializers.SerializerMethodField()
    itl_ms = serializers.SerializerMethodField()

    @extend_schema_field(PercentilesSerializer)
    def get_ttft_ms(self, metrics: Metrics) -> dict[str, float | None]:
        return _percentiles(metrics, "ttft")

    @extend_schema_field(PercentilesSerializer)
    def get_itl_ms(self, metrics: Metrics) -> dict[str, float | None]:
        return _percentiles(metrics, "itl")


def _percentiles(metrics: Metrics, metric: str) -> dict[str, float | None]:
    return {f"p{percent}": metrics.percentile_ms(metric, percent) for percent in PERCENTILES}


class TimedMetricsSerializer(MetricsSerializer):
    start = serializers.DateTimeField()


class CopyMetricsSerializer(MetricsSerializer):
    copy = serializers.CharField(help_text="Id of the deployment's copy; '' if none answered.")


class NamedMetricsSerializer(MetricsSerializer):
    adapter = serializers.CharField()


class AdapterMetricsSerializer(serializers.Serializer[Any]):
    adapter = serializers.CharField()
    range = serializers.CharField()
    start = serializers.DateTimeField()
    interval_seconds = serializers.IntegerField(help_text="Length of each slot of `over_time`.")
    total = MetricsSerializer()
    over_time = TimedMetricsSerializer(many=True, help_text="Oldest first, with empty slots.")
    by_copy = CopyMetricsSerializer(many=True, help_text="Busiest first.")


def adapter_metrics_shown(adapter: str, found: AdapterMetrics) -> dict[str, Any]:
    """Return the response about one adapter."""
    return {
        "adapter": adapter,
        "range": found.span.name,
        "start": found.start,
        "interval_seconds": int(found.span.slot.total_seconds()),
        "total": MetricsSerializer(found.total).data,
        "over_time": [{**MetricsSerializer(item).data, "start": at} for at, item in found.over_time],
        "by_copy": [{**MetricsSerializer(item).data, "copy": name} for name, item in found.by_copy.items()],
    }


_NAME: Final = "Name of the adapter; for the operator `<tenant>/<adapter>`."


class AlarmSerializer(serializers.ModelSerializer[Alarm]):
    adapter = serializers.SerializerMethodField(help_text=_NAME)
    deployment = serializers.CharField(source="deployment.name", allow_null=True, default=None)
    notify_on = serializers.ListField(child=serializers.ChoiceField(State.choices))

    class Meta:
        model = Alarm
        fields = (
            "id",
            "name",
            "description",
            "adapter",
            "deployment",
            "metric",
            "comparison",
            "threshold",
            "period_seconds",
            "evaluation_periods",
            "datapoints_to_alarm",
            "treat_missing_data",
            "notify_on",
            "email",
            "webhook_tenant",
            "enabled",
            "state",
            "state_reason",
            "state_at",
            "evaluated_to",
            "created_at",
        )

    def get_adapter(self, alarm: Alarm) -> str | None:
        if alarm.adapter is None:
            return None
        return alarm.adapter.name if alarm.tenant_id else str(alarm.adapter)


class AlarmInput(StrictSerializer):
    name = serializers.CharField(max_length=100)
    description = serializers.CharField(max_length=500, required=False, allow_blank=True)
    adapter = serializers.CharField(
        max_length=127,
        required=False,
        allow_null=True,
        help_text="Adapter to watch; null for all of the tenant's adapters together. For the operator "
        "`<tenant>/<adapter>`.",
    )
    deployment = serializers.CharField(
        max_length=36, required=False, allow_null=True, help_text="Operator's alarms: deployment to watch."
    )
    metric = serializers.ChoiceField(
        Metric.choices,
        help_text="`no_requests` goes to ALARM in periods without a request; it has no comparison and no "
        "threshold.",
    )
    comparison = serializers.ChoiceField(Comparison.choices, default=Comparison.GREATER)
    threshold = serializers.FloatField(default=0.0, help_text="In the metric's unit.")
    period_seconds = serializers.ChoiceField([(each, str(each)) for each in PERIODS], default=300)
    evaluation_periods = serializers.IntegerField(
        default=1,
        min_value=1,
        max_value=360,
        help_text="Number of most recent periods to evaluate; six hours in total at most.",
    )
    datapoints_to_alarm = serializers.IntegerField(
        default=1, min_value=1, max_value=360, help_text="How many of these periods must breach for ALARM."
    )
    treat_missing_data = serializers.ChoiceField(MissingData.choices, default=MissingData.MISSING)
    notify_on = serializers.ListField(
        child=serializers.ChoiceField(State.choices),
        required=False,
        max_length=3,
        help_text="States that send a notification when the alarm enters them. Default: ALARM and OK.",
    )
    email = serializers.BooleanField(
        default=True, help_text="Notify owners, admins and engineers (the operator: staff) by e-mail."
    )
    webhook_tenant = serializers.CharField(
        max_length=63,
        required=False,
        allow_null=True,
        help_text="Operator's alarms: tenant whose webhook endpoints get `alarm.state_changed`.",
    )
    enabled = serializers.BooleanField(default=True)


class AlarmChangesInput(AlarmInput):
    """Some of the fields."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "partial": True})


class AlarmChangeSerializer(serializers.ModelSerializer[AlarmChange]):
    values = serializers.ListField(child=serializers.FloatField(allow_null=True))

    class Meta:
        model = AlarmChange
        fields = ("id", "before", "after", "reason", "values", "at")
