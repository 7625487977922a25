"""A customer's script from before Graftwork: boto3 and the calls of document 001, nothing of ours.

One endpoint with two bases whose archive brings two adapters, asked for by name in the body, and a third
adapter as a component of its own. `python customers_script.py STEP FOLDER` prints JSON; FOLDER has `model/`,
`adapters/es/`, `adapters/fr/` and `adapters/ru/`, and the steps are

    up, ask, lists, seen, down
    swap COMPONENT ADAPTER      other files for an adapter's component
    scale COMPONENT COPIES      another number of copies of a base

Where AWS is, with which keys, the environment says.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import boto3

BUCKET, ENDPOINT = "resumes", "resume-parser"
BASE, SECOND, ADAPTER = "resume-parser-base", "resume-parser-match", "resume-parser-ru"
ROLE = "arn:aws:iam::000000000000:role/notebook"
IMAGE = "763104351884.dkr.ecr.eu-central-1.amazonaws.com/djl-inference:0.27.0-deepspeed0.12.6-cu121"
ENVIRONMENT = {
    "OPTION_MODEL_ID": "/opt/ml/model/model",
    "OPTION_TRUST_REMOTE_CODE": "true",
    "OPTION_TENSOR_PARALLEL_DEGREE": "2",
    "OPTION_ROLLING_BATCH": "lmi-dist",
    "OPTION_MAX_ROLLING_BATCH_SIZE": "4",
    "OPTION_DTYPE": "fp16",
    "OPTION_ENABLE_LORA": "true",
    "OPTION_GPU_MEMORY_UTILIZATION": "0.8",
    "OPTION_MAX_LORA_RANK": "64",
    "OPTION_MAX_CPU_LORAS": "4",
    "GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.02",
    "GRAFTWORK_WORKER_FLAG_NUM_THREADS": "1",
}
WAIT = {"Delay": 1, "MaxAttempts": 180}

s3, sm, smr = boto3.client("s3"), boto3.client("sagemaker"), boto3.client("sagemaker-runtime")


def upload(key: str, files: dict[str, Path]) -> str:
    """An archive of these folders by their names in it; "" is its root."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, folder in files.items():
            for path in sorted(folder.iterdir()):
                archive.add(path, f"{name}/{path.name}".lstrip("/"))
    s3.put_object(Bucket=BUCKET, Key=key, Body=packed.getvalue())
    return f"s3://{BUCKET}/{key}"


def settled(component: str) -> str:
    for _ in range(WAIT["MaxAttempts"]):
        found = sm.describe_inference_component(InferenceComponentName=component)
        if found["InferenceComponentStatus"] not in ("Creating", "Updating"):
            return str(found["InferenceComponentStatus"])
        time.sleep(WAIT["Delay"])  # as a boto3 waiter pauses
    raise SystemExit(f"{component} does not settle")


def up(folder: Path) -> dict[str, str]:
    region = s3.meta.region_name
    place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=BUCKET, **place)
    adapters = folder / "adapters"
    artifact = upload(
        "models/adapters.tar.gz",
        {"model": folder / "model", "adapters/es": adapters / "es", "adapters/fr": adapters / "fr"},
    )
    for component in (BASE, SECOND):
        sm.create_model(
            ModelName=component,
            ExecutionRoleArn=ROLE,
            PrimaryContainer={"Image": IMAGE, "Environment": ENVIRONMENT, "ModelDataUrl": artifact},
        )
    sm.create_endpoint_config(
        EndpointConfigName=ENDPOINT,
        ExecutionRoleArn=ROLE,
        ProductionVariants=[
            {
                "VariantName": "AllTraffic",
                "InstanceType": "ml.g5.12xlarge",
                "InitialInstanceCount": 1,
                "ManagedInstanceScaling": {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 2},
                "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
            }
        ],
    )
    sm.create_endpoint(EndpointName=ENDPOINT, EndpointConfigName=ENDPOINT)
    sm.get_waiter("endpoint_in_service").wait(EndpointName=ENDPOINT, WaiterConfig=WAIT)
    for component in (BASE, SECOND):
        sm.create_inference_component(
            InferenceComponentName=component,
            EndpointName=ENDPOINT,
            VariantName="AllTraffic",
            Specification={
                "ModelName": component,
                "StartupParameters": {
                    "ModelDataDownloadTimeoutInSeconds": 1200,
                    "ContainerStartupHealthCheckTimeoutInSeconds": 1200,
                },
                "ComputeResourceRequirements": {
                    "NumberOfAcceleratorDevicesRequired": 2,
                    "MinMemoryRequiredInMb": 1024,
                },
            },
            RuntimeConfig={"CopyCount": 1},
        )
        settled(component)
    sm.create_inference_component(
        InferenceComponentName=ADAPTER,
        EndpointName=ENDPOINT,
        Specification={
            "BaseInferenceComponentName": BASE,
            "Container": {"ArtifactUrl": upload("adapters/ru.tar.gz", {"": adapters / "ru"})},
        },
    )
    return {component: settled(component) for component in (BASE, SECOND, ADAPTER)}


def invoke(component: str, **body: Any) -> Any:
    """A call of the document's; `inputs` may be a list, and `adapters` one name for each of its inputs."""
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 8, "do_sample": False}, **body}
    answer = smr.invoke_endpoint(
        EndpointName=ENDPOINT,
        InferenceComponentName=component,
        ContentType="application/json",
        Body=json.dumps(body),
    )
    return json.loads(answer["Body"].read())


def ask(_: Path) -> dict[str, Any]:
    """Ask both base models, their archives' adapters by name in the body, and the adapter component."""
    return {
        "base": invoke(BASE),
        "es": invoke(BASE, adapters="es"),
        "fr": invoke(BASE, adapters="fr"),
        "ru": invoke(ADAPTER),
        "match": invoke(SECOND, adapters="fr"),
    }


def ask_lists(_: Path) -> dict[str, Any]:
    """Ask in the document's form: lists of inputs, and an adapter for each."""
    return {
        "es": invoke(BASE, inputs=["hello"], adapters=["es"]),
        "several": invoke(BASE, inputs=["hello", "hello", "hello"], adapters=["es", "fr", ""]),
        "one for all": invoke(BASE, inputs=["hello", "hello"], adapters="fr"),
    }


def swap(folder: Path, component: str, adapter: str) -> str:
    artifact = upload(f"adapters/{component}.tar.gz", {"": folder / "adapters" / adapter})
    sm.update_inference_component(
        InferenceComponentName=component, Specification={"Container": {"ArtifactUrl": artifact}}
    )
    return settled(component)


def scale(folder: Path, component: str, copies: str) -> dict[str, int]:
    sm.update_inference_component_runtime_config(
        InferenceComponentName=component, DesiredRuntimeConfig={"CopyCount": int(copies)}
    )
    for _ in range(WAIT["MaxAttempts"]):
        found = sm.describe_inference_component(InferenceComponentName=component)
        current = found["RuntimeConfig"]["CurrentCopyCount"]
        if found["InferenceComponentStatus"] == "InService" and current == int(copies):
            (variant,) = sm.describe_endpoint(EndpointName=found["EndpointName"])["ProductionVariants"]
            return {"copies": current, "instances": variant["CurrentInstanceCount"]}
        time.sleep(WAIT["Delay"])  # as a boto3 waiter pauses
    raise SystemExit(f"{component} does not come to {copies} copies")


def list_components(_: Path) -> dict[str, dict[str, str]]:
    """Return every component of the account with its tags, also those of other owners."""
    pages = sm.get_paginator("list_inference_components").paginate()
    found = [item for page in pages for item in page["InferenceComponents"]]
    return {
        item["InferenceComponentName"]: {
            tag["Key"]: tag["Value"]
            for tag in sm.list_tags(ResourceArn=item["InferenceComponentArn"])["Tags"]
        }
        for item in found
    }


def wait_deleted(*components: str) -> None:
    """Wait until the components are gone: boto3 has no waiter for them."""
    for _ in range(WAIT["MaxAttempts"]):
        pages = sm.get_paginator("list_inference_components").paginate()
        listed = {item["InferenceComponentName"] for page in pages for item in page["InferenceComponents"]}
        if listed.isdisjoint(components):
            return
        time.sleep(WAIT["Delay"])  # as a boto3 waiter pauses
    raise SystemExit(f"{', '.join(components)} are not deleted")


def down(_: Path) -> dict[str, str]:
    """Clean up in the document's order, with the wait that it leaves out.

    DeleteEndpoint is refused while the endpoint's components are being deleted, and a base's deletion while
    its adapters' components exist. The configuration and the models need no wait.
    """
    sm.delete_inference_component(InferenceComponentName=ADAPTER)
    wait_deleted(ADAPTER)
    for component in (BASE, SECOND):
        sm.delete_inference_component(InferenceComponentName=component)
    wait_deleted(BASE, SECOND)
    sm.delete_endpoint(EndpointName=ENDPOINT)
    sm.delete_endpoint_config(EndpointConfigName=ENDPOINT)
    for model in (BASE, SECOND):
        sm.delete_model(ModelName=model)
    sm.get_waiter("endpoint_deleted").wait(EndpointName=ENDPOINT, WaiterConfig=WAIT)
    for item in s3.list_objects_v2(Bucket=BUCKET)["Contents"]:
        s3.delete_object(Bucket=BUCKET, Key=item["Key"])
    s3.delete_bucket(Bucket=BUCKET)
    return {}


if __name__ == "__main__":
    steps: dict[str, Any] = {
        "up": up,
        "ask": ask,
        "lists": ask_lists,
        "swap": swap,
        "scale": scale,
        "seen": list_components,
        "down": down,
    }
    print(json.dumps(steps[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
