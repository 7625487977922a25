"""Adapters swapped under load, by a new component and the alias, and in place: no request fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from openai import NotFoundError, OpenAI

from contracts.base_routes import adapter_component
from controlplane.adapters.aliases import alias_move
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import DeploymentRollout
from controlplane.deployments.rollouts.services import deployment_rollout_start
from controlplane.deployments.services import deployment_remove
from controlplane.routes.services import route_publish_now
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import Register, drive, removed, unregister
from tests.controlplane.deployments.test_rollouts import ended
from tests.controlplane.deployments.test_sagemaker import credentials, gateway_of, pause, placed, stand  # noqa: F401
from tests.sagemaker_local.stand import BUCKET, Stand
from tests.waiting import eventually

pytestmark = pytest.mark.django_db
CALLERS = 4


class Load:
    """Answers that callers in a closed loop received: texts and refusals."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[Exception] = []

    def wait_for(self, text: str) -> None:
        eventually(lambda: text in self.texts[-1:], message=lambda: self.texts[-3:])


@contextmanager
def asked_all_the_time(client: OpenAI, model: str) -> Iterator[Load]:
    """Streams, one after the other by each caller."""
    load, over = Load(), threading.Event()

    def call() -> None:
        while not over.is_set():
            try:
                load.texts.append(ask(client, model))
            except Exception as error:
                load.refusals.append(error)

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        over.set()
        for thread in threads:
            thread.join()


def ask(client: OpenAI, model: str) -> str:
    stream = client.completions.create(
        model=model, prompt="hello", max_tokens=8, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def once_known(client: OpenAI, model: str) -> str:
    """Return the model's first answer, once the gateway has its route."""

    def answer() -> str:
        with suppress(NotFoundError):
            return ask(client, model)
        return ""

    return eventually(answer)


@pytest.mark.slow
def test_swaps_and_a_rolling_update_of_the_base_under_load(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    tenant: Tenant,
    register: Register,
    redis_url: str,
    tmp_path: Path,
) -> None:
    first = register("plain", "bot")
    alias_move(adapter=first.adapter, name="prod", number=1)
    deployment = drive(deploy(stand, tiny, min_copies=2, max_copies=2), placed, pause=pause)
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
        old = ask(client, "bot@prod")
        with asked_all_the_time(client, "bot@prod") as load:
            # A new component, then the alias, then the old component goes.
            newer = register("patterns", "bot", 2)
            drive(deployment, lambda row: placed(row) and row.placements.count() == 2, pause=pause)
            route_publish_now()
            new = once_known(client, "bot@v2")
            alias_move(adapter=newer.adapter, name="prod", number=2)
            route_publish_now()
            load.wait_for(new)
            unregister(first)
            drive(deployment, lambda row: placed(row) and row.placements.count() == 1, pause=pause)
            component = adapter_component("gw-tiny", newer.engine_name)
            assert resources(stand)["components"] == ["gw-tiny", component]

            # In place: another archive under the same component, and back.
            files = Path(str(register("all", "spare").uri).removeprefix("file://"))
            other = stand.upload("other.tar.gz", files)
            stand.client("sagemaker").update_inference_component(
                InferenceComponentName=component, Specification={"Container": {"ArtifactUrl": other}}
            )
            stand.settled(component)
            in_place = ask(client, "bot@prod")
            assert in_place not in (old, new)
            load.wait_for(in_place)
            drive(deployment, lambda row: placed(row) and ask(client, "bot@prod") == new, pause=pause)
            load.wait_for(new)

            # The base under them, copy by copy.
            rollout = deployment_rollout_start(
                deployment=deployment,
                change={"options": {"max_rolling_batch_size": 8}},
                policy={"wait_seconds": 0},
            )
            drive(deployment, ended(rollout, DeploymentRollout.Status.COMPLETED), pause=pause)
            count = len(load.texts)
            load.wait_for(new)
        assert load.refusals == []
        assert set(load.texts) == {old, new, in_place}
        assert count > 50
    stand.client("s3").delete_object(Bucket=BUCKET, Key="other.tar.gz")
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
