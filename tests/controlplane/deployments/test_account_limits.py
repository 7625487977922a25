"""An account that throttles, and one whose quota of components is full: work goes on as far as it lets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment, Placement
from controlplane.deployments.provisioners.base import ThrottledError
from controlplane.deployments.provisioners.sagemaker.pace import Pace
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_remove
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import Register, drive, removed, serving, unregister
from tests.controlplane.deployments.test_sagemaker import credentials, pause, placed  # noqa: F401
from tests.sagemaker_local.stand import BUCKET, REGION, Stand, run_stand

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An account whose quota allows components for one base model and two adapters."""
    folder = tmp_path_factory.mktemp("stand")
    with run_stand(folder, component_quota=3) as running:
        location = {"LocationConstraint": REGION}
        running.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=location)
        yield running


def ready(deployment: Deployment) -> set[str]:
    """Adapters and versions that can be asked for."""
    rows = deployment.placements.filter(status=Placement.Status.READY)
    return {".".join(row.engine_name.split(".")[1:3]) for row in rows}


@pytest.mark.costly("real workers behind the local SageMaker")
def test_a_full_quota_is_told_and_given_back_by_those_that_go(
    stand: Stand, tiny: BaseModel, register: Register
) -> None:
    first, _ = register("plain", "one"), register("all", "two")
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    register("patterns", "one", 2)
    drive(deployment, lambda row: "quota" in row.reason, pause=pause)
    assert deployment.status == Deployment.Status.SERVING
    assert deployment.reason.startswith("A quota of the account is exhausted: request an")
    assert ready(deployment) == {"a_one.v1", "a_two.v1"}, "those that are there are known to be"
    unregister(first)
    deployment = drive(deployment, lambda row: placed(row) and row.placements.count() == 2, pause=pause)
    assert ready(deployment) == {"a_one.v2", "a_two.v1"}
    assert deployment.reason == ""
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_throttled_creations_and_removals_go_on_in_the_same_run(
    stand: Stand, tiny: BaseModel, register: Register
) -> None:
    deployment = drive(deploy(stand, tiny, name="slow"), serving, pause=pause)
    register("plain", "one")
    register("all", "two")
    stand.put("rates", {"CreateInferenceComponent": 3, "DeleteInferenceComponent": 3, "ListTags": 8})
    try:
        deployment_reconcile(deployment_id=deployment.pk)
        assert len(resources(stand)["components"]) == 3
        deployment.refresh_from_db()
        assert deployment.failures == 0
        drive(deployment, placed, pause=pause)
        deployment_remove(deployment=deployment)
        drive(deployment, removed, pause=pause)
        assert not deployment.steps.filter(cause__contains="throttled").exists()
    finally:
        stand.put("rates", {})
    assert resources(stand) == NOTHING


class Account:
    """Lets a call through every `seconds`, as its own clock has it."""

    def __init__(self, seconds: float) -> None:
        self.now, self.calls, self.passed = 0.0, 0, 0
        self._seconds, self._next = seconds, 0.0

    def call(self) -> int:
        self.calls += 1
        if self.now < self._next:
            raise ThrottledError("throttled")
        self._next = self.now + self._seconds
        self.passed += 1
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def paced(account: Account, patience: float) -> Pace:
    return Pace(patience, clock=lambda: account.now, sleep=account.sleep)


def test_the_pace_finds_the_accounts_rate() -> None:
    account = Account(0.5)
    pace = paced(account, 60.0)
    assert [pace.keep("create", account.call) for _ in range(40)] == list(range(1, 41))
    assert account.now < 40 * 0.5 * 2, "half of the account's rate at least"
    assert account.calls < 60
    before = account.now
    other = Account(0.0)
    assert pace.keep("describe", other.call) == 1
    assert account.now == before, "another operation does not wait"


def test_patience_ends() -> None:
    account = Account(1000.0)
    pace = paced(account, 25.0)
    assert pace.keep("create", account.call) == 1
    with pytest.raises(ThrottledError):
        pace.keep("create", account.call)
    assert account.calls == 6, "so often in a row"
    for _ in range(20):
        with pytest.raises(ThrottledError):
            pace.keep("create", account.call)
    assert account.now <= 25.0, "and for so long in all"
