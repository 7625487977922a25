"""Lifecycle of components and of the server: rolling updates, rollbacks, restarts, ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sagemaker_local.stand import Stand, run_stand
from tests.waiting import eventually

pytestmark = pytest.mark.costly("real workers behind the local SageMaker")

ONE_BY_ONE = {
    "RollingUpdatePolicy": {
        "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
        "WaitIntervalInSeconds": 0,
    }
}


@pytest.fixture(scope="module")
def stand(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An endpoint `shared` with a base `base` of two copies, and a second model to update it to."""
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        running.model("tiny", OPTION_MODEL_ID=str(tiny_model))
        running.model("next", OPTION_MODEL_ID=str(tiny_model), OPTION_MAX_MODEL_LEN="128")
        running.endpoint("shared")
        running.base("base", "shared", "tiny", copies=2)
        yield running


@contextmanager
def asked_all_the_time(stand: Stand) -> Iterator[list[Any]]:
    """Yields the answers and errors that three callers get meanwhile."""
    seen: list[Any] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            try:
                seen.append(stand.ask("shared", "base"))
            except Exception as error:
                seen.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()


def update(stand: Stand, model: str, **deployment: Any) -> dict[str, Any]:
    stand.client("sagemaker").update_inference_component(
        InferenceComponentName="base",
        Specification={"ModelName": model},
        DeploymentConfig={**ONE_BY_ONE, **deployment},
    )
    return stand.settled("base")


def environments(stand: Stand) -> list[bytes]:
    return [Path(f"/proc/{pid}/environ").read_bytes() for pid in stand.workers()]


@pytest.mark.costly("real workers behind the local SageMaker")
def test_a_rolling_update_fails_no_request(stand: Stand) -> None:
    with asked_all_the_time(stand) as seen:
        found = update(stand, "next")
    assert (found["InferenceComponentStatus"], found.get("FailureReason")) == ("InService", None)
    assert found["Specification"]["ModelName"] == "next"
    assert found["LastDeploymentConfig"]["RollingUpdatePolicy"]["WaitIntervalInSeconds"] == 0
    assert len(seen) > 10
    assert [item for item in seen if isinstance(item, Exception)] == []
    assert [b"OPTION_MAX_MODEL_LEN=128" in line for line in environments(stand)] == [True, True]


def test_a_copy_that_does_not_start_takes_the_update_back(stand: Stand) -> None:
    old = stand.settled("base")["Specification"]["ModelName"]
    new = {"next": "tiny", "tiny": "next"}[old]
    stand.model("broken", OPTION_MODEL_ID="/no/such/folder")
    with asked_all_the_time(stand) as seen:
        found = update(stand, "broken")
    assert found["Specification"]["ModelName"] == old
    assert "/no/such/folder" in found["FailureReason"]
    # Of a batch of two one does not start; the other must not stay.
    stand.put("faults", [{"kind": "start_failure", "component": "base"}])
    both = {"MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 2}, "WaitIntervalInSeconds": 0}
    found = update(stand, new, RollingUpdatePolicy=both)
    assert (found["InferenceComponentStatus"], found["Specification"]["ModelName"]) == ("InService", old)
    assert "ping health check" in found["FailureReason"]
    assert found["RuntimeConfig"]["CurrentCopyCount"] == len(stand.workers()) == 2
    long = [b"OPTION_MAX_MODEL_LEN=128" in line for line in environments(stand)]
    assert long == [old == "next"] * 2, "both copies are of the old version"
    assert [item for item in seen if isinstance(item, Exception)] == []


def test_an_alarm_takes_the_update_back(stand: Stand) -> None:
    old = stand.settled("base")["Specification"]["ModelName"]
    cloudwatch = stand.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="errors",
        MetricName="Errors",
        Namespace="Mine",
        Statistic="Sum",
        Period=60,
        Threshold=1,
        EvaluationPeriods=1,
        ComparisonOperator="GreaterThanThreshold",
    )
    cloudwatch.set_alarm_state(AlarmName="errors", StateValue="ALARM", StateReason="by hand")
    found = update(
        stand,
        {"next": "tiny", "tiny": "next"}[old],
        AutoRollbackConfiguration={"Alarms": [{"AlarmName": "errors"}]},
    )
    assert found["Specification"]["ModelName"] == old
    assert "Alarms went off" in found["FailureReason"]
    long = [b"OPTION_MAX_MODEL_LEN=128" in line for line in environments(stand)]
    assert long == [old == "next"] * 2, "both copies are of the old version again"


@pytest.mark.costly("real workers behind the local SageMaker")
def test_resources_outlive_the_server(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """S3 lives in moto's memory, so the model is a folder of this host."""
    state = tmp_path / "state.json"
    with run_stand(tmp_path, state_file=str(state)) as stand:
        stand.model("tiny", OPTION_MODEL_ID=str(tiny_model))
        stand.endpoint("shared")
        stand.base("base", "shared", "tiny", copies=1)
        answer = stand.ask("shared", "base")
        # Components keep what they were created from: the next server needs no such model.
        stand.client("sagemaker").delete_model(ModelName="tiny")
        # Not even a server that was killed, and left its copies' folders, forgets.
        stand.process.kill()
        stand.process.wait()
    with run_stand(tmp_path, state_file=str(state)) as stand:
        stand.client("sagemaker").get_waiter("endpoint_in_service").wait(
            EndpointName="shared", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
        )
        assert stand.settled("base")["RuntimeConfig"]["CurrentCopyCount"] == 1
        assert stand.ask("shared", "base") == answer


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_is_left_behind(tiny_model: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The server's end leaves no serving copy, no starting copy and no moto."""
    with run_stand(tmp_path) as stand:
        stand.client("s3").list_buckets()
        stand.model("tiny", OPTION_MODEL_ID=str(tiny_model))
        stand.endpoint("shared")
        stand.base("base", "shared", "tiny", copies=1)
        stand.base("starting", "shared", "tiny", copies=1, settle=False)
        eventually(lambda: len(stand.workers()) >= 2)
        children = family(stand.process.pid)
        assert len(children) == 3
        os.kill(stand.process.pid, number)
        stand.process.wait(30)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def family(parent: int) -> list[int]:
    """Return the pids of the children of `parent`."""
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
