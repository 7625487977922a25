"""A base model's header is read again: new shapes are stored and published, another model is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from django.test import Client

from controlplane.catalog.models import BaseModel
from controlplane.catalog.refresh import base_model_refresh
from controlplane.catalog.services import base_model_register
from controlplane.deployments.copies.services import copy_register
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.selectors import route_base
from controlplane.tenants.services import user_create
from tests.controlplane.conftest import write_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


def older(checkpoint: Path) -> tuple[BaseModel, dict[str, list[int]]]:
    """A base model as a release registered it that read fewer tensors; and the shapes that it has."""
    base_model = base_model_register(name="old", source=checkpoint)
    base_model.refresh_from_db()
    whole = dict(base_model.modules)
    dropped = next(name for name in whole if ".layers." in name)
    base_model.modules = {name: shape for name, shape in whole.items() if name != dropped}
    base_model.image_tokens = None
    base_model.save()
    return base_model, whole


def changed(checkpoint: Path, **values: object) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_an_older_release_did_not_read_is_read_and_published(checkpoint: Path) -> None:
    base_model, whole = older(checkpoint)
    copy_register(base_model=base_model, kind="worker", url="http://worker:1")
    changed(checkpoint, max_position_embeddings=99)
    base_model_refresh(base_model=base_model)
    base_model.refresh_from_db()
    assert base_model.modules == whole
    assert base_model.max_model_len == 99
    route = route_base(base_model="old")
    assert route is not None
    assert (route.max_model_len, len(route.copies)) == (99, 1)
    assert route.image_tokens is not None
    record = AuditRecord.objects.get(action="base_model.refresh")
    assert record.before is not None
    assert record.after is not None
    assert (record.before["modules"], record.after["modules"]) == (len(whole) - 1, len(whole))


def test_another_model_in_the_source_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    base_model, _ = older(checkpoint)
    base_model.modules = {**base_model.modules, "model.layers.99.mlp.up_proj": [8, 8]}
    base_model.save()
    with pytest.raises(ConflictError, match=r"model\.layers\.99\.mlp\.up_proj: no such tensor"):
        base_model_refresh(base_model=base_model)
    base_model.modules = {next(iter(base_model.modules)): [8, 9]}
    base_model.save()
    with pytest.raises(ConflictError, match=r"registered was \[8, 9\].*another model"):
        base_model_refresh(base_model=base_model)
    changed(checkpoint, architectures=["Qwen3ForCausalLM"])
    with pytest.raises(ConflictError, match="architecture Qwen3ForCausalLM"):
        base_model_refresh(base_model=base_model)
    shutil.rmtree(checkpoint)
    with pytest.raises(InvalidInputError):
        base_model_refresh(base_model=base_model)
    assert not AuditRecord.objects.filter(action="base_model.refresh").exists()


def test_staff_refreshes_by_rest_and_on_the_page(checkpoint: Path, client: Client) -> None:
    base_model, whole = older(checkpoint)
    client.force_login(user_create(email="o@example.com", password="correct horse", is_staff=True))
    answer = client.post("/api/v1/base-models/old/refresh")
    assert (answer.status_code, answer.json()["reads_images"]) == (200, False)
    base_model.refresh_from_db()
    assert base_model.modules == whole
    page = client.post("/staff/base-models/old/refresh", follow=True)
    assert "Read again" in page.content.decode()
    changed(checkpoint, architectures=["Qwen3ForCausalLM"])
    page = client.post("/staff/base-models/old/refresh", follow=True)
    assert "another model" in page.content.decode()
