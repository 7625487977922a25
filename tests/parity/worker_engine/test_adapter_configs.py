"""Configurations and file names that differ from what PEFT writes today are served as PEFT serves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

from tests.parity.worker_engine.test_adapter_forms import COUNT, load, peft_greedy, write_adapter, write_model
from tests.worker_engine.adapters.test_refusals import SERVED
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens

pytestmark = [
    # PEFT says which tensors of the file it left out, and that nothing is tied.
    pytest.mark.filterwarnings("ignore:.*unexpected keys.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:`eva_config` specified but:UserWarning"),
    pytest.mark.filterwarnings("ignore:You have requested `ensure_weight_tying`:UserWarning"),
]
SHARDS = {
    "adapter_model-00001-of-00002.safetensors": ".lora_A.",
    "adapter_model-00002-of-00002.safetensors": ".lora_B.",
}
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "m", tie_word_embeddings=False)


@pytest.mark.parametrize("case", SERVED)
@pytest.mark.costly("runs each case in PEFT and in the engine")
def test_as_in_peft(base: Path, case: str, make_engine: EngineFactory, tmp_path: Path) -> None:
    folder = write_adapter(base, tmp_path / "a", {"target_modules": ["q_proj", "v_proj"]})
    without = peft_greedy(base, folder, PROMPT)
    SERVED[case](folder)
    expected = peft_greedy(base, folder, PROMPT)
    assert expected == without
    engine = make_engine(base)
    engine.add_request(request("r", PROMPT, COUNT), load(base, folder, tmp_path / "c"))
    assert tokens(drain(engine)["r"]) == expected


def test_shards_are_refused_as_in_peft(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT knows one file of weights; asked for a folder of shards, it looks for a repository of its name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = write_adapter(base, tmp_path / "a", {"target_modules": ["q_proj", "v_proj"]})
    weights = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    for shard, part in SHARDS.items():
        save_file({name: tensor for name, tensor in weights.items() if part in name}, folder / shard)
    places = {name: shard for name in weights for shard, part in SHARDS.items() if part in name}
    (folder / "adapter_model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises((HFValidationError, LocalEntryNotFoundError, ValueError)):
        peft_greedy(base, folder, PROMPT)
