"""Checkpoints and adapters for the worker's tests: tiny random ones, always there, and the demo's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from worker_engine.config import EngineConfig
from worker_engine.engine import Engine
from worker_engine.models import load_config
from worker_engine.protocol import (
    ADAPTER_FILES,
    AdapterRef,
    GenerateRequest,
    SamplingParams,
    TokenDelta,
    adapter_digest,
    engine_name,
)
from worker_engine.tokenizer import ChatTokenizer

# One thread: tiny products gain nothing from two, and two that spin on a busy machine lose tenfold.
torch.set_num_threads(1)


HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PEFT calls what transformers deprecates; neither is ours to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"))


def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer of 256 tokens: every byte is one, so that characters split across tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    """The byte-level tokenizer, and a chat template that knows no tools."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )


def tiny_config(**changes: Any) -> LlamaConfig:
    """A Llama of 3 layers whose shapes are odd and whose heads are grouped 3 to 1."""
    values: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 72,
        "intermediate_size": 104,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "eos_token_id": 255,
        "bos_token_id": 254,
        "initializer_range": 0.2,
    }
    return LlamaConfig(**(values | changes))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random fp32 checkpoint."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(7)
    LlamaForCausalLM(tiny_config()).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def make_adapter(model: Path, folder: Path, *, seed: int, **options: Any) -> Path:
    """A random PEFT adapter with non-zero B for `model`; the base checkpoint is left as it is."""
    torch.manual_seed(seed)
    base = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    values: dict[str, Any] = {"init_lora_weights": False, "task_type": "CAUSAL_LM"}
    get_peft_model(base, LoraConfig(**(values | options))).save_pretrained(str(folder))
    return folder


ADAPTER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "narrow": {"r": 1, "lora_alpha": 1, "target_modules": ["v_proj"]},
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "all": {
        "r": 16,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    "rslora": {"r": 64, "lora_alpha": 3, "use_rslora": True, "target_modules": ["o_proj", "down_proj"]},
    "patterns": {
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj", "up_proj"],
        "rank_pattern": {"k_proj": 3, r"layers\.1\.self_attn\.q_proj": 5},
        "alpha_pattern": {"up_proj": 20},
    },
}


@pytest.fixture(scope="session")
def tiny_adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of random adapters by name: ranks 1 to 64, different modules, rsLoRA, patterns."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(tiny_model, root / name, seed=index, **options)
        for index, (name, options) in enumerate(ADAPTER_OPTIONS.items())
    }


def adapter_ref(folder: Path, *, name: str = "some", rank: int = 64) -> AdapterRef:
    """The reference under which a folder's adapter is served."""
    digest = adapter_digest(
        {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in ADAPTER_FILES}
    )
    slug = engine_name(tenant="acme", adapter=name, version=1, sha256=digest)
    return AdapterRef(slug, folder.as_uri() + "/", digest, rank)


@dataclass(frozen=True)
class Reference:
    """transformers + PEFT on one checkpoint: greedy tokens, one sequence at a time."""

    model: Any
    adapters: tuple[str, ...]

    @classmethod
    def load(cls, model: Path, adapters: Mapping[str, Path]) -> Reference:
        loaded: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
        for name, folder in adapters.items():
            if isinstance(loaded, PeftModel):
                loaded.load_adapter(folder, adapter_name=name)
            else:
                loaded = PeftModel.from_pretrained(loaded, folder, adapter_name=name)
        return cls(loaded.eval(), tuple(adapters))

    def greedy(self, prompt: Sequence[int], count: int, adapter: str | None = None) -> list[int]:
        """The next `count` tokens, past any end-of-sequence token."""
        ids = torch.tensor([list(prompt)])
        self.model.generation_config.eos_token_id = None
        options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        adapted = isinstance(self.model, PeftModel)
        if adapted and adapter is not None:
            self.model.set_adapter(adapter)
        without = self.model.disable_adapter() if adapted and adapter is None else nullcontext()
        with without:
            output = self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        completion: list[int] = output[0, len(prompt) :].tolist()
        return completion


EngineFactory = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> EngineFactory:
    """Builds an fp32 CPU engine on a checkpoint folder, with any of EngineConfig's fields changed."""

    def build(model: Path, **changes: Any) -> Engine:
        values: dict[str, Any] = {"memory_gib": 0.05, "adapter_cache_dir": tmp_path / "cache"}
        config = EngineConfig(model, "base", **(values | changes))
        return Engine(
            config,
            load_config(model),
            ChatTokenizer(model),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )

    return build


def request(name: str, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> GenerateRequest:
    """Greedy and deaf to end-of-sequence unless `sampling` says otherwise."""
    values: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    return GenerateRequest(name, tuple(prompt), SamplingParams(max_tokens, **(values | sampling)))


def drain(engine: Engine) -> dict[str, list[TokenDelta]]:
    """Steps until nothing is left; deltas by request."""
    deltas: dict[str, list[TokenDelta]] = {}
    while not engine.idle:
        for delta in engine.step():
            deltas.setdefault(delta.request_id, []).append(delta)
    return deltas


def tokens(deltas: Sequence[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.fixture(scope="session")
def demo_adapters() -> dict[str, Path]:
    """The committed demo adapters by name."""
    root = Path(__file__).resolve().parents[2] / "demo" / "adapters"
    return {folder.name: folder for folder in sorted(root.iterdir()) if (folder / ADAPTER_FILES[1]).exists()}
