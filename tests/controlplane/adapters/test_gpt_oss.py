"""A GPT-OSS checkpoint in MXFP4 is registered, and adapters of every layout of its experts."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from controlplane.adapters.services import adapter_register
from controlplane.adapters.serving import serving_options
from controlplane.adapters.validation import version_validate
from controlplane.catalog.services import base_model_register
from controlplane.tenants.models import Tenant
from tests.worker_engine.tiny_gpt_oss import EXPERTS, HIDDEN, HOLDER, INTER, LAYOUTS, write_gpt_oss

pytestmark = pytest.mark.django_db
TRAITS = {
    "stacks": ["stacked-experts"],
    "singles": ["experts"],
    "lists": ["experts"],
    "attention and router": ["router"],
}


def test_adapters_of_every_layout_are_for_the_bundled_worker(tenant: Tenant, tmp_path: Path) -> None:
    base = base_model_register(name="oss", source=write_gpt_oss(tmp_path / "base", mxfp4=True))
    assert (base.architecture, base.quantization) == ("GptOssForCausalLM", "mxfp4")
    assert base.modules[f"{HOLDER}.experts.gate_up_proj"] == (EXPERTS, 2 * INTER, HIDDEN)
    for number, (layout, write) in enumerate(LAYOUTS.items()):
        folder = write(tmp_path / layout)
        streams = {file.name: BytesIO(file.read_bytes()) for file in folder.iterdir()}
        version = adapter_register(tenant=tenant, name=f"a{number}", base_model=base, files=streams)
        version_validate(version_id=version.pk)
        version.refresh_from_db()
        assert (version.status, version.reason) == ("ready", ""), layout
        assert version.traits == TRAITS[layout]
        worker, *_ = serving_options(base_model=base, ref=version.ref())
        assert (worker.name, worker.serves, worker.reason) == ("the bundled worker", "yes", "")
