"""Document 001's script, call by call: adapters in the archive, lists in the body, and its clean-up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sagemaker_local.stand import Stand, refused, run_stand
from tests.waiting import eventually

pytestmark = pytest.mark.costly("a real worker behind a local SageMaker of its own")
DELETING = 100.0


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    """A local SageMaker whose clock stands still: what is deleted stays `Deleting` until it is advanced."""
    (tmp_path / "stand").mkdir()
    with run_stand(tmp_path / "stand", durations={"deleting": DELETING}, clock_running=False) as running:
        running.endpoint("shared")
        yield running


def archive(stand: Stand, model: Path, adapters: dict[str, Path], folder: Path) -> str:
    """An archive as the document has it: the model's files, and `adapters/<name>/`."""
    shutil.copytree(model, folder)
    for name, source in adapters.items():
        shutil.copytree(source, folder / "adapters" / name)
    return stand.upload(f"{folder.name}.tar.gz", folder)


def test_adapters_of_an_archive_are_asked_for_in_lists_and_all_is_cleaned_up(
    stand: Stand, tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    adapters = {"es": tiny_adapters["plain"], "fr": tiny_adapters["all"]}
    stand.model("llama", archive(stand, tiny_model, adapters, tmp_path / "llama"))
    for component in ("one", "two"):
        stand.base(component, "shared", "llama")

    base, es, fr = (stand.ask("shared", "one", adapters=name) for name in ("", "es", "fr"))
    assert len({str(answer) for answer in (base, es, fr)}) == 3
    lists = {"inputs": ["hello"] * 3, "adapters": ["fr", "", "es"]}
    assert stand.ask("shared", "one", **lists) == [fr, base, es]
    assert stand.ask("shared", "two", inputs=["hello"], adapters=["es"]) == [es]
    error, message = refused(
        stand.ask, endpoint="shared", component="one", inputs=["a", "b"], adapters=["es"]
    )
    assert error == "ModelError"
    assert "a list of 2 names, one for each input" in message

    sagemaker = stand.client("sagemaker")
    said = "has inference components: delete one, two first, and wait until ListInferenceComponents"
    assert said in refused(sagemaker.delete_endpoint, EndpointName="shared")[1]
    for component in ("one", "two"):
        sagemaker.delete_inference_component(InferenceComponentName=component)
    code, message = refused(sagemaker.delete_endpoint, EndpointName="shared")
    assert code == "ValidationException"
    assert "has inference components that are being deleted, one, two: wait until" in message

    # The one wait; the document's next calls then follow each other.
    stand.advance(DELETING)
    eventually(lambda: not sagemaker.list_inference_components()["InferenceComponents"])
    sagemaker.delete_endpoint(EndpointName="shared")
    sagemaker.delete_endpoint_config(EndpointConfigName="shared")
    sagemaker.delete_model(ModelName="llama")
    assert sagemaker.list_models()["Models"] == []
    assert sagemaker.list_endpoint_configs()["EndpointConfigs"] == []
    stand.advance(DELETING)
    eventually(lambda: not sagemaker.list_endpoints()["Endpoints"])


def test_pickled_adapters_of_an_archive_are_refused_with_the_remedy(
    stand: Stand, tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(tiny_adapters["plain"], pickled)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    stand.model("llama", archive(stand, tiny_model, {"es": pickled}, tmp_path / "llama"))
    stand.base("one", "shared", "llama", settle=False)
    found = stand.settled("one")
    assert found["InferenceComponentStatus"] == "Failed"
    assert "adapters/es: adapter_model.bin is a pickle" in found["FailureReason"]
    assert "`graftwork convert FOLDER NEW_FOLDER`, which takes an archive" in found["FailureReason"]

    artifact = stand.upload("es.tar.gz", pickled)
    stand.model("plain", stand.upload("plain.tar.gz", tiny_model))
    stand.base("two", "shared", "plain")
    found = stand.adapter("bot", "shared", "two", artifact)
    assert found["InferenceComponentStatus"] == "Failed"
    assert "graftwork convert" in found["FailureReason"]
