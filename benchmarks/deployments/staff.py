"""Staff actions of the run, using the control plane's services: `python -m benchmarks.deployments.staff`.

Reads `[action, arguments]` per line, and writes one answer per line.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import django

from contracts.adapters.reference import EngineName

django.setup()

from controlplane.catalog.models import BaseModel  # noqa: E402  # models need Django to be set up
from controlplane.catalog.services import base_model_register  # noqa: E402
from controlplane.deployments.models import Deployment, DeploymentStep, Placement, Target  # noqa: E402
from controlplane.deployments.services import deployment_create, deployment_remove  # noqa: E402
from controlplane.deployments.targets.services import target_create  # noqa: E402
from controlplane.routes.selectors import route_version  # noqa: E402
from controlplane.tenants.services import api_key_create, tenant_create  # noqa: E402

ROLE: Final = "arn:aws:iam::000000000000:role/serving"
_WORKER: Final = {"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.05", "GRAFTWORK_WORKER_FLAG_NUM_THREADS": "1"}


def prepare(*, sagemaker: str, region: str, store: str, bases: dict[str, str]) -> str:
    """Create a tenant, base models from folders, and a target; return the text of an API key."""
    tenant = tenant_create(slug="orchard", name="Orchard")
    _, key = api_key_create(tenant=tenant, name="bench", scopes=["manage", "inference"])
    for name, folder in bases.items():
        base_model_register(name=name, source=folder)
    target_create(
        name="local-sm", kind="sagemaker", region=region, endpoint_url=sagemaker, role_arn=ROLE, store=store
    )
    return key


def deploy(*, bases: list[str], instance_type: str) -> None:
    """Deploy each base model, all on one endpoint."""
    for base in BaseModel.objects.filter(name__in=bases).order_by("name"):
        deployment_create(
            name=base.name,
            target=Target.objects.get(),
            base_model=base,
            endpoint="shared",
            instance_type=instance_type,
            environment=_WORKER,
            options={"max_rolling_batch_size": 8},
        )


def snapshot() -> dict[str, Any]:
    """Return the state of deployments and placements, the ready adapter versions, and the route version."""
    deployments = {
        row.name: [row.status, row.reason, row.removed_at is not None]
        for row in Deployment.objects.order_by("name")
    }
    rows = Placement.objects.values_list("engine_name", "status")
    placed = [(EngineName.parse(name), status) for name, status in rows]
    return {
        "deployments": deployments,
        "ready": [[name.adapter, name.version] for name, status in placed if status == "ready"],
        "placements": Counter(status for _, status in placed),
        "routes": route_version() or 0,
    }


def remove() -> None:
    """Remove all deployments."""
    for row in Deployment.objects.filter(removed_at=None):
        deployment_remove(deployment=row)


def steps() -> dict[str, Any]:
    """Return the journal's calls by action, and the refused ones by cause."""
    rows = DeploymentStep.objects
    refused = rows.filter(outcome=DeploymentStep.Outcome.FAILED).values_list("cause", flat=True)
    return {
        "calls": Counter(rows.exclude(seconds=None).values_list("action", flat=True)),
        "refused": Counter(cause.partition(" (")[0] for cause in refused),
    }


_ACTIONS: Final[dict[str, Callable[..., Any]]] = {
    "prepare": prepare,
    "deploy": deploy,
    "snapshot": snapshot,
    "remove": remove,
    "steps": steps,
}


def main() -> None:
    for line in sys.stdin:
        action, arguments = json.loads(line)
        print(json.dumps(_ACTIONS[action](**arguments)), flush=True)


if __name__ == "__main__":
    main()
