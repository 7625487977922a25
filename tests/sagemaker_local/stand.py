"""A local SageMaker with a control plane, as a process, and what a customer does with it by boto3 alone."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.conftest import ROOT, free_port, stop
from tests.waiting import eventually
from tests.worker_process import assert_forked, worker_environment

REGION = "eu-central-1"
KEY = {"access_key": "AKIDLOCAL", "secret_key": "local-secret"}
ROLE = "arn:aws:iam::000000000000:role/serving"
IMAGE = "763104351884.dkr.ecr.eu-central-1.amazonaws.com/djl-inference:0.35.0-lmi17.0.0-cu128"
ADMIN_TOKEN = "local-admin"
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
SMALL = {"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.02", "GRAFTWORK_WORKER_FLAG_NUM_THREADS": "1"}
NEEDS = {"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 1024}
BUCKET = "artifacts"
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Stand:
    """A running server; `process` is its own, `work` where its copies' folders are."""

    port: int
    process: subprocess.Popen[bytes]
    work: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, service: str, *, key: dict[str, str] = KEY, region: str = REGION) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=region,
            aws_access_key_id=key["access_key"],
            aws_secret_access_key=key["secret_key"],
            config=Config(retries={"total_max_attempts": 1}),
        )

    def put(self, path: str, body: Any) -> Any:
        url = f"{self.url}/_local/{path}"
        return httpx.put(url, json=body, headers=ADMIN, timeout=60).raise_for_status().json()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}/_local/{path}", headers=ADMIN).raise_for_status().json()

    def advance(self, seconds: float) -> None:
        self.put("clock", {"advance": seconds})

    def upload(self, key: str, folder: Path) -> str:
        """The `s3://` URL of the folder's files, as an archive with them at its root."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)
        s3 = self.client("s3")
        with contextlib.suppress(ClientError):
            s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket=BUCKET, Key=key, Body=packed.getvalue())
        return f"s3://{BUCKET}/{key}"

    def endpoint(self, name: str, **variant: Any) -> None:
        """An endpoint for inference components, in service: one ml.g5.12xlarge (4 accelerators)."""
        values = {
            "VariantName": "main",
            "InstanceType": "ml.g5.12xlarge",
            "InitialInstanceCount": 1,
            **variant,
        }
        sagemaker = self.client("sagemaker")
        sagemaker.create_endpoint_config(
            EndpointConfigName=name, ExecutionRoleArn=ROLE, ProductionVariants=[values]
        )
        sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
        sagemaker.get_waiter("endpoint_in_service").wait(
            EndpointName=name, WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
        )

    def model(self, name: str, artifact: str = "", **environment: str) -> None:
        container: dict[str, Any] = {"Image": IMAGE, "Environment": SMALL | environment}
        if artifact:
            container["ModelDataUrl"] = artifact
        self.client("sagemaker").create_model(
            ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer=container
        )

    def base(self, name: str, endpoint: str, model: str, *, copies: int = 1, settle: bool = True) -> None:
        self.client("sagemaker").create_inference_component(
            InferenceComponentName=name,
            EndpointName=endpoint,
            VariantName="main",
            Specification={"ModelName": model, "ComputeResourceRequirements": NEEDS},
            RuntimeConfig={"CopyCount": copies},
        )
        if settle:
            assert self.settled(name)["InferenceComponentStatus"] == "InService"

    def adapter(self, name: str, endpoint: str, base: str, artifact: str) -> dict[str, Any]:
        self.client("sagemaker").create_inference_component(
            InferenceComponentName=name,
            EndpointName=endpoint,
            Specification={"BaseInferenceComponentName": base, "Container": {"ArtifactUrl": artifact}},
        )
        return self.settled(name)

    def settled(self, name: str) -> dict[str, Any]:
        """The component once it is neither Creating nor Updating."""
        sagemaker = self.client("sagemaker")

        def settled() -> dict[str, Any] | None:
            found = sagemaker.describe_inference_component(InferenceComponentName=name)
            return None if found["InferenceComponentStatus"] in ("Creating", "Updating") else dict(found)

        return eventually(settled, seconds=WAIT_SECONDS)

    def delete_component(self, name: str) -> None:
        """Deletes a component and waits until there is none."""
        sagemaker = self.client("sagemaker")
        sagemaker.delete_inference_component(InferenceComponentName=name)

        def listed() -> list[str]:
            found = sagemaker.list_inference_components(NameContains=name, MaxResults=100)
            return [item["InferenceComponentName"] for item in found["InferenceComponents"]]

        eventually(lambda: name not in listed(), seconds=WAIT_SECONDS)

    def ask(self, endpoint: str, component: str | None = None, **body: Any) -> Any:
        """Invoke the endpoint; sampling is greedy, so the answer is the same each time."""
        asked = {"inputs": "hello", "parameters": {"max_new_tokens": 8, "do_sample": False}, **body}
        named = {} if component is None else {"InferenceComponentName": component}
        answer = self.client("sagemaker-runtime").invoke_endpoint(
            EndpointName=endpoint, Body=json.dumps(asked), ContentType="application/json", **named
        )
        return json.loads(answer["Body"].read())

    def workers(self) -> list[int]:
        """Return the pids of this server's copies, found by its folder on their command lines."""
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdecimal() and str(self.work).encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found


def answers(url: str) -> bool:
    """Return True once the local SageMaker at `url` takes requests."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/_local/health").status_code == 200
    return False


@contextlib.contextmanager
def run_stand(
    folder: Path, *, environment: Mapping[str, str] | None = None, **config: Any
) -> Iterator[Stand]:
    """`environment` is added to the process's; `config` are fields of the configuration file."""
    port, work = free_port(), folder / "work"
    values: dict[str, Any] = {"region": REGION, "credentials": [KEY], "admin_token": ADMIN_TOKEN}
    values |= {"work_dir": str(work), **config}
    (folder / "config.json").write_text(json.dumps(values))
    command = [sys.executable, "-m", "sagemaker_local", "--config", str(folder / "config.json")]
    with (folder / "sagemaker.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**worker_environment(), **(environment or {})},
        )
    stand = Stand(port, process, work)
    try:
        eventually(lambda: process.poll() is not None or answers(stand.url))
        assert process.poll() is None, (folder / "sagemaker.log").read_text()
        yield stand
        assert_forked(work)
    finally:
        stop(process, grace=30)


def refused(call: Any, **arguments: Any) -> tuple[str, str]:
    """Code and message of the refusal."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["Error"]["Message"]
    raise AssertionError("it was not refused")
