"""Several weighted adapters per request equal PEFT's add_weighted_adapter("cat"), in mixed batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from tests.parity import references
from tests.worker_engine.adapters.test_mix import WEIGHTS, folders, loader, mix
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.tiny_adapter import adapter_ref

__all__ = ["folders"]
COUNT = 32


def test_as_in_peft(
    tiny_model: Path, folders: list[Path], make_engine: EngineFactory, tmp_path: Path
) -> None:
    draw = random.Random(5)
    prompts = [[draw.randrange(256) for _ in range(size)] for size in (17, 9, 5, 21)]
    model: Any = references.LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = references.PeftModel.from_pretrained(model, str(folders[0]), adapter_name="0")
    for index in (1, 2):
        model.load_adapter(str(folders[index]), adapter_name=str(index))
    model.add_weighted_adapter(["0", "1", "2"], list(WEIGHTS), "mix", combination_type="cat")
    model.generation_config.eos_token_id = None

    def greedy(prompt: list[int], name: str) -> list[int]:
        model.set_adapter(name)
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 0}
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        return list(map(int, output[0, len(prompt) :]))

    names = ["mix", "0", "1", "mix"]
    expected = [greedy(prompt, name) for prompt, name in zip(prompts, names, strict=True)]
    assert expected[0] != greedy(prompts[0], "0")
    load = loader(tiny_model, tmp_path / "c").load
    adapters = {str(index): load(adapter_ref(folders[index])) for index in (0, 1)}
    adapters["mix"] = load(mix(folders))
    engine = make_engine(tiny_model)
    for index, (prompt, name) in enumerate(zip(prompts, names, strict=True)):
        engine.add_request(request(str(index), prompt, COUNT), adapters[name])
    mixed = drain(engine)
    assert [tokens(mixed[str(index)]) for index in range(4)] == expected
