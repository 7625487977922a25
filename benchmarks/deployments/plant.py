"""The product as processes: control plane, gateway, Redis, and the local SageMaker with its workers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3
import httpx
from botocore.config import Config

from benchmarks.processes import ROOT, Killable, free_port, product_environ, status_of, wait_until
from demo.valkey import server_command

REGION: Final = "eu-central-1"
BUCKET: Final = "artifacts"
_KEY, _SECRET = "AKIDLOCAL", "local-secret"
_START_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Plant:
    """All processes, each with its own port; `work` is the folder of SageMaker's copies."""

    web: str
    gateway: str
    sagemaker: str
    redis_url: str
    work: Path
    environ: Mapping[str, str]

    def aws(self, service: str) -> Any:
        """Return a boto3 client of the account, like a customer's."""
        return boto3.client(
            service,
            endpoint_url=self.sagemaker,
            region_name=REGION,
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
            config=Config(retries={"total_max_attempts": 8}),
        )

    def routes_version(self) -> int:
        """Return the version of the gateway's current route table."""
        answer = httpx.get(f"{self.gateway}/readyz", trust_env=False)
        return int(answer.json()["routes_version"] or 0)

    def remaining_resources(self) -> dict[str, list[str]]:
        """Return all resources in the account by kind, and the running workers."""
        sagemaker, s3 = self.aws("sagemaker"), self.aws("s3")
        kinds = {
            "list_inference_components": ("InferenceComponents", "InferenceComponentName"),
            "list_endpoints": ("Endpoints", "EndpointName"),
            "list_endpoint_configs": ("EndpointConfigs", "EndpointConfigName"),
            "list_models": ("Models", "ModelName"),
        }
        found = {
            key: [item[name] for page in sagemaker.get_paginator(listed).paginate() for item in page[key]]
            for listed, (key, name) in kinds.items()
        }
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        found["Objects"] = [item["Key"] for page in pages for item in page.get("Contents", ())]
        found["Workers"] = [str(pid) for pid in self._workers()]
        return found

    def _workers(self) -> Iterator[int]:
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdecimal() and str(self.work).encode() in (path / "cmdline").read_bytes():
                    yield int(path.name)


@contextlib.contextmanager
def running(folder: Path, database_url: str, *, sagemaker: Mapping[str, Any]) -> Iterator[Plant]:
    """Start everything on a migrated database.

    Args:
        sagemaker: additional fields of the local SageMaker's configuration.
    """
    redis, web, gateway, aws = (free_port() for _ in range(4))
    environ = product_environ(database_url, folder, web=web, gateway=gateway, valkey=redis) | {
        # Longer than any request of this load, and than gateways take to learn that a route has ended.
        "GRAFTWORK_DEPLOYMENT_DRAIN_SECONDS": "3",
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
    }
    work = folder / "copies"
    config = {
        "region": REGION,
        "credentials": [{"access_key": _KEY, "secret_key": _SECRET}],
        "work_dir": str(work),
        **sagemaker,
    }
    (folder / "sagemaker.json").write_text(json.dumps(config))
    (folder / "valkey").mkdir()
    plant = Plant(
        f"http://127.0.0.1:{web}",
        f"http://127.0.0.1:{gateway}",
        f"http://127.0.0.1:{aws}",
        environ["GRAFTWORK_REDIS_URL"],
        work,
        environ,
    )
    processes = _processes(folder, environ, web=web, redis=redis, aws=aws)
    try:
        for each in processes:
            each.start()
        wait_until(
            lambda: status_of(f"{plant.sagemaker}/_local/health") < 500,
            name="the local SageMaker",
            seconds=_START_SECONDS,
        )
        wait_until(
            lambda: status_of(f"{plant.web}/api/v1/me") < 500, name="the web process", seconds=_START_SECONDS
        )
        location = {"LocationConstraint": REGION}
        plant.aws("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=location)
        yield plant
    finally:
        for each in reversed(processes):
            each.stop()


def _processes(
    folder: Path, environ: Mapping[str, str], *, web: int, redis: int, aws: int
) -> Sequence[Killable]:
    """Return the processes in order of dependency."""

    def process(name: str, *command: str) -> Killable:
        return Killable(name, command, environ, folder / f"{name}.log")

    python = sys.executable
    celery = (python, "-m", "celery", "-A", "controlplane.celery")
    prompt = "worker -Q graftwork,graftwork.webhooks,graftwork.mail --concurrency 1 -n prompt"
    long = "worker -Q graftwork.long --concurrency 1 -n long"
    deployments = "worker -Q graftwork.deployments --concurrency 2 -n deployments"
    sagemaker = ("-m", "sagemaker_local", "--config", str(folder / "sagemaker.json"), "--port", str(aws))
    return [
        process("redis", *server_command(port=redis, folder=folder / "valkey")),
        process("sagemaker", python, *sagemaker),
        process("web", python, "-m", "controlplane.web_server", "--port", str(web)),
        process("publisher", python, "manage.py", "publish_routes"),
        process("gateway", python, "-m", "gateway"),
        process("celery", *celery, *prompt.split()),
        process("celery-long", *celery, *long.split()),
        process("celery-deployments", *celery, *deployments.split()),
        process("beat", *celery, "beat", "--schedule", str(folder / "beat"), "--pidfile="),
    ]


class Staff:
    """Staff-only actions, run in a process of the control plane's code; one line per request and answer."""

    def __init__(self, plant: Plant, log: Path) -> None:
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.deployments.staff"],
                cwd=ROOT,
                env={**os.environ, **plant.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._log = log

    def ask(self, action: str, **arguments: Any) -> Any:
        """Return the action's result. Raises RuntimeError with the log when the process has ended."""
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise RuntimeError("the process has no pipes")
        requests.write(json.dumps([action, arguments]) + "\n")
        requests.flush()
        if not (line := answers.readline()):
            raise RuntimeError(f"{action}: {self._log.read_text()[-3000:]}")
        return json.loads(line)

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()
