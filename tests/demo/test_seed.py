"""The demo's rows, put again at each start over what people have made meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.deployments.copies.endpoints import copies_sync
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.base import Endpoint
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from demo.seed import base_model_seed

pytestmark = pytest.mark.django_db
WORKER, FORMER, DEPLOYED, VLLM = (f"http://127.0.0.1:{port}" for port in (8012, 8002, 8100, 8200))


def test_a_start_over_a_deployment_leaves_its_copies(tiny_model: Path) -> None:
    base = base_model_seed(name="tiny", source=tiny_model, worker_url=FORMER)
    deployment = deployment_create(
        name="mine", target=target_create(name="here", kind="local"), base_model=base
    )
    copies_sync(deployment=deployment, endpoints=[Endpoint("worker", DEPLOYED)])
    copy_register(base_model=base, kind="openai_http", url=VLLM)
    for _ in range(2):
        base_model_seed(name="tiny", source=tiny_model, worker_url=WORKER)
        assert sorted(base.copies.values_list("url", flat=True)) == sorted([WORKER, DEPLOYED, VLLM])
    assert Deployment.objects.get().copies.get().url == DEPLOYED
