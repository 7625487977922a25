"""Export of metrics to CloudWatch, against the local SageMaker's: each minute once, batched and retried."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from contracts.base_routes import adapter_component
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.services import copy_remove
from controlplane.deployments.models import Copy, Deployment, Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.targets.services import target_create, target_update
from controlplane.errors import InvalidInputError
from controlplane.metering.models import UsageEventRow
from controlplane.monitoring.cloudwatch import export, metric_data
from controlplane.monitoring.cloudwatch.export import LAG, OLDEST, metrics_export
from controlplane.monitoring.models import MetricExport
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant, User
from tests.controlplane.monitoring.traffic import attempt, engine, ingest
from tests.sagemaker_local.stand import BUCKET, KEY, REGION, ROLE, Stand, run_stand

pytestmark = pytest.mark.django_db
MINUTE = dt.timedelta(minutes=1)
START = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0) - 20 * MINUTE


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY["secret_key"])


@pytest.fixture
def target(stand: Stand, acme: Tenant, request: pytest.FixtureRequest) -> Target:
    """A target with a namespace of this test's own, and two copies of a deployment there."""
    found = target_create(
        name="sm",
        kind="sagemaker",
        region=REGION,
        endpoint_url=stand.url,
        role_arn=ROLE,
        store=f"s3://{BUCKET}/graft",
        metrics_namespace=f"Test/{request.node.name}"[:200].replace("[", "-").replace("]", ""),
    )
    base = BaseModel.objects.get(name="tiny-base")
    deployment = Deployment.objects.create(name="tiny", target=found, base_model=base, hosting="components")
    for name, endpoint in (("copy-1", "gw-tiny"), ("copy-2", "gw-other")):
        Copy.objects.create(
            pk=name,
            base_model=base,
            kind="sagemaker",
            region=REGION,
            endpoint=endpoint,
            component="gw-tiny",
            deployment=deployment,
        )
    MetricExport.objects.create(target=found, exported_to=START, next_at=START)
    return found


def statistics(stand: Stand, target: Target, metric: str, **dimensions: str) -> list[dict[str, Any]]:
    """Sums and counts by minute that CloudWatch has of a metric, oldest first."""
    answer = stand.client("cloudwatch").get_metric_statistics(
        Namespace=target.metrics_namespace,
        MetricName=metric,
        Dimensions=[{"Name": name, "Value": value} for name, value in dimensions.items()],
        StartTime=START - 60 * MINUTE,
        EndTime=START + 60 * MINUTE,
        Period=60,
        Statistics=["Sum", "SampleCount", "Maximum"],
    )
    return sorted(answer["Datapoints"], key=lambda point: point["Timestamp"])


def dimensions(endpoint: str = "gw-tiny") -> dict[str, str]:
    return {
        "EndpointName": endpoint,
        "InferenceComponentName": adapter_component("gw-tiny", engine()),
        "Adapter": "acme/support-bot@v1",
    }


def traffic(minute: int, count: int, **values: Any) -> None:
    at = START + minute * MINUTE + dt.timedelta(seconds=5)
    ingest(attempt(at, ttft_ms=100.0 + number, **values) for number in range(count))


def after(minutes: int) -> dt.datetime:
    """The time at which this number of minutes is complete."""
    return START + minutes * MINUTE + LAG


@pytest.mark.costly("the local SageMaker and its CloudWatch")
def test_each_minute_is_exported_once_by_adapter_and_endpoint(stand: Stand, target: Target) -> None:
    traffic(0, 5)
    traffic(0, 2, endpoint="copy-2")
    traffic(0, 3, adapter="")
    traffic(1, 4)
    traffic(1, 1, status="error", error_code="upstream_timeout")
    traffic(1, 9, endpoint="elsewhere")
    assert metrics_export(now=after(2)) == 2
    assert metrics_export(now=after(2)) == 0, "nothing is due"
    requests = statistics(stand, target, "Requests", **dimensions())
    assert [(point["Timestamp"], point["Sum"]) for point in requests] == [(START, 5), (START + MINUTE, 5)]
    errors = statistics(stand, target, "Errors", **dimensions())
    assert [point["Sum"] for point in errors] == [0, 1]
    tokens = statistics(stand, target, "PromptTokens", **dimensions())
    assert [point["Sum"] for point in tokens] == [50, 50]
    first = statistics(stand, target, "TimeToFirstToken", **dimensions())
    assert [point["SampleCount"] for point in first] == [5, 5]
    assert first[0]["Maximum"] == pytest.approx(104, rel=0.02)
    between = statistics(stand, target, "InterTokenLatency", **dimensions())
    assert between[0]["Sum"] == pytest.approx(5 * 20, rel=0.02)
    other = statistics(stand, target, "Requests", **dimensions("gw-other"))
    assert [point["Sum"] for point in other] == [2]
    base = {"EndpointName": "gw-tiny", "InferenceComponentName": "gw-tiny"}
    assert [point["Sum"] for point in statistics(stand, target, "Requests", **base)] == [3]
    assert MetricExport.objects.get().exported_to == START + 2 * MINUTE


@pytest.mark.costly("the local SageMaker and its CloudWatch")
def test_failures_of_a_copy_that_was_removed_since_are_exported(stand: Stand, target: Target) -> None:
    traffic(0, 2, endpoint="copy-2")
    traffic(0, 3, endpoint="copy-2", status="error", error_code="upstream_unreachable")
    for copy in Copy.objects.all():
        copy_remove(copy=copy, by_deployment=True)
    assert metrics_export(now=after(1)) == 1
    (requests,) = statistics(stand, target, "Requests", **dimensions("gw-other"))
    (errors,) = statistics(stand, target, "Errors", **dimensions("gw-other"))
    assert (requests["Sum"], errors["Sum"]) == (5, 3)


class FailingAccount(ServicesAccount):
    """An account in which every call from the second on gets no answer."""

    calls = 0

    def ask(self, service: str, operation: str, about: str, **arguments: Any) -> dict[str, Any]:
        self.calls += 1
        if self.calls > 1:
            raise ProvisioningError("the service does not answer", transient=True)
        return super().ask(service, operation, about, **arguments)


@pytest.mark.costly("the local SageMaker and its CloudWatch")
def test_a_failed_minute_goes_on_where_it_stopped(
    stand: Stand, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_data, "_BATCH", 2)
    traffic(0, 5)
    assert metrics_export(now=after(1), connect=FailingAccount.from_target) == 0
    row = MetricExport.objects.get()
    assert (row.failures, row.error) == (1, "the service does not answer")
    assert row.exported_to == START
    assert row.pending is not None
    assert len(row.pending) == 2, "one of three batches was sent"
    # Events that arrive meanwhile do not change the minute's batches.
    traffic(0, 7)
    assert metrics_export(now=after(1)) == 0, "not before the next attempt is due"
    assert metrics_export(now=after(2)) == 2
    row.refresh_from_db()
    assert (row.failures, row.error, row.pending) == (0, "", None)
    for metric in ("Requests", "Errors", "PromptTokens", "CompletionTokens"):
        (point,) = statistics(stand, target, metric, **dimensions())
        assert point["SampleCount"] == 1, metric
    (first,) = statistics(stand, target, "TimeToFirstToken", **dimensions())
    assert first["SampleCount"] == 5


@pytest.mark.costly("the local SageMaker and its CloudWatch")
def test_another_run_at_the_same_time_sends_nothing(stand: Stand, target: Target) -> None:
    traffic(0, 5)
    others = []

    class Overlapped(ServicesAccount):
        def ask(self, *args: Any, **arguments: Any) -> dict[str, Any]:
            others.append(metrics_export(now=after(1)))
            return super().ask(*args, **arguments)

    assert metrics_export(now=after(1), connect=Overlapped.from_target) == 1
    assert others == [0]
    (point,) = statistics(stand, target, "Requests", **dimensions())
    assert point["Sum"] == 5


def no_account(_: Target) -> ServicesAccount:
    raise ProvisioningError("no credentials")


@pytest.mark.costly("the local SageMaker and its CloudWatch")
def test_attempts_become_rarer_and_old_minutes_are_skipped(stand: Stand, target: Target) -> None:
    now, waits = after(1), []
    for _ in range(7):
        metrics_export(now=now, connect=no_account)
        row = MetricExport.objects.get()
        waits.append(int((row.next_at - now).total_seconds()))
        now = row.next_at
    assert waits == [30, 60, 120, 240, 480, 900, 900]
    MetricExport.objects.update(exported_to=START - OLDEST - 90 * MINUTE)
    assert metrics_export(now=now) == export._AT_ONCE
    latest = (now - LAG).replace(second=0)
    assert MetricExport.objects.get().exported_to == latest - OLDEST + export._AT_ONCE * MINUTE


@pytest.mark.costly("the local SageMaker and its CloudWatch")
def test_without_a_namespace_nothing_is_exported(stand: Stand, target: Target) -> None:
    name = target.metrics_namespace
    traffic(0, 5)
    target_update(target=target, metrics_namespace="")
    assert metrics_export(now=after(1)) == 0
    assert not MetricExport.objects.exists()
    target_update(target=target, metrics_namespace=name)
    assert metrics_export(now=after(3)) == 0, "it begins with the present minute"
    assert statistics(stand, target, "Requests", **dimensions()) == []
    actions = AuditRecord.objects.filter(action="target.update").values_list("before", "after")
    assert list(actions.order_by("pk")) == [
        ({"metrics_namespace": name}, {"metrics_namespace": ""}),
        ({"metrics_namespace": ""}, {"metrics_namespace": name}),
    ]


def test_batches_have_at_most_150_values_and_copies_of_one_endpoint_are_added_up(acme: Tenant) -> None:
    target = Target.objects.create(name="sm", kind="sagemaker", region=REGION)
    base = BaseModel.objects.get(name="tiny-base")
    deployment = Deployment.objects.create(name="tiny", target=target, base_model=base, hosting="on_demand")
    for number in (1, 2):
        Copy.objects.create(
            pk=f"copy-{number}",
            base_model=base,
            kind="sagemaker",
            region=REGION,
            endpoint="gw-tiny",
            url=f"http://{number}",
            adapter_naming="name",
            deployment=deployment,
        )
    at = START + dt.timedelta(seconds=1)
    ingest(attempt(at, endpoint=f"copy-{1 + number % 2}", ttft_ms=1.05**number) for number in range(200))
    (batch,) = metric_data.metric_batches(target=target, minute=START)
    by_name: dict[str, list[Any]] = {}
    for datum in batch:
        by_name.setdefault(datum["MetricName"], []).append(datum)
        assert datum["Dimensions"] == [
            {"Name": "EndpointName", "Value": "gw-tiny"},
            {"Name": "Adapter", "Value": "acme/support-bot@v1"},
        ]
    assert by_name["Requests"][0]["Value"] == 200
    assert [len(datum["Values"]) <= 150 for datum in by_name["TimeToFirstToken"]] == [True, True]
    assert sum(sum(datum["Counts"]) for datum in by_name["TimeToFirstToken"]) == 200
    UsageEventRow.objects.all().delete()
    assert metric_data.metric_batches(target=target, minute=START) == []


@pytest.mark.parametrize("namespace", ["AWS/SageMaker", ":x", "a" * 256, "ä"])
def test_a_namespace_that_cloudwatch_refuses_is_refused(
    client: Client, staff: User, acme: Tenant, namespace: str
) -> None:
    target = Target.objects.create(name="sm", kind="sagemaker", region=REGION)
    with pytest.raises(InvalidInputError):
        target_update(target=target, metrics_namespace=namespace)
    client.force_login(staff)
    path, changes = "/api/v1/targets/sm", {"metrics_namespace": namespace}
    assert client.patch(path, changes, content_type="application/json").status_code == 400
    answer = client.patch(path, {"metrics_namespace": "Graftwork"}, content_type="application/json")
    assert answer.json()["metrics_namespace"] == "Graftwork"


def test_only_targets_on_sagemaker_have_a_namespace(acme: Tenant) -> None:
    target = Target.objects.create(name="here", kind="local", host="h", address="127.0.0.1")
    with pytest.raises(InvalidInputError, match="not valid for targets of kind local"):
        target_update(target=target, metrics_namespace="Graftwork")
