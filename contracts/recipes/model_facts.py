"""Facts that a checkpoint's own files state and recipes depend on. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from contracts.recipes.spec_fields import SpecError, SpecFields

PICKLED: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Suffixes of weights whose loading can run code: never read, never copied."""
_NOT_OURS: Final = (".gguf", ".onnx", ".h5", ".msgpack")
"""Suffixes of the same weights for other servers."""
_MAX_JSON: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A checkpoint, as far as its files were read; an unknown fact is None.

    Attributes:
        architecture: the class that config.json names.
        quantized: the stored weights' `quant_method`; empty for plain weights.
        vocabulary: digest of the tokens by id; a draft model must have the same one as its target.
        dtype: of the weights, as config.json states it.
        max_model_len: context in tokens; 0 if unknown.
        names: names that the model goes by, such as a catalogue's and the hub's.
    """

    architecture: str | None = None
    quantized: str = ""
    vocabulary: str | None = None
    dtype: str = ""
    max_model_len: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a checkpoint's folder. Raises SpecError if it is no Hugging Face checkpoint of safetensors."""
        if not folder.is_dir():
            raise SpecError(f"{folder} is not a folder")
        config = _object(folder / "config.json")
        if not list(folder.glob("*.safetensors")):
            pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
            why = f", only {pickled[0]}: convert it to safetensors" if pickled else ""
            raise SpecError(f"{folder} holds no *.safetensors{why}")
        named = config.get("architectures")
        quantization = config.get("quantization_config")
        tokenizer = folder / "tokenizer.json"
        return cls(
            architecture=named[0]
            if isinstance(named, list) and named and isinstance(named[0], str)
            else None,
            quantized=str(quantization.get("quant_method", "unnamed"))
            if isinstance(quantization, dict)
            else "",
            vocabulary=_vocabulary(_object(tokenizer)) if tokenizer.is_file() else None,
            dtype=str(config.get("dtype") or config.get("torch_dtype") or ""),
            max_model_len=int(config.get("max_position_embeddings") or 0),
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the result will serve; SageMaker's and the worker's rules depend on it.

    Attributes:
        merge_adapter: the worker merges an adapter into a second copy of the linear layers.
        inference_components: it is deployed as a SageMaker inference component.
        custom_inference_script: it brings an inference script of its own.
        local_testing: SageMaker's local mode.
        fine_tuned_outside_jumpstart: the model was fine-tuned elsewhere than in SageMaker JumpStart.
    """

    merge_adapter: bool = False
    inference_components: bool = False
    custom_inference_script: bool = False
    local_testing: bool = False
    fine_tuned_outside_jumpstart: bool = False

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        read = cls(**{name: fields.flag(name) for name in cls.__dataclass_fields__})
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's files by name, with their digests.

    Attributes:
        files: name -> (size in bytes, hex SHA-256).
    """

    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hex SHA-256 over `<sha256>  <name>\\n`, sorted by name."""
        return files_digest({name: sha256 for name, (_, sha256) in self.files.items()})

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())


def checkpoint_files(folder: Path) -> list[Path]:
    """List a checkpoint's files, without pickled weights and other servers' weight formats."""
    return sorted(path for path in folder.iterdir() if path.is_file() and belongs(path.name))


def belongs(name: str) -> bool:
    """Return True if `checkpoint_files` includes a file of this name."""
    return not name.startswith(".") and Path(name).suffix not in (*PICKLED, *_NOT_OURS)


def files_digest(sha256_by_name: Mapping[str, str]) -> str:
    """Return the digest of any files, computed like `contracts.adapters.reference.adapter_digest`."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sha256_by_name.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise SpecError(f"{path} is larger than any file of its name")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(f"{path} must hold a JSON object")
    return value


def _vocabulary(tokenizer: Mapping[str, Any]) -> str | None:
    """Return the digest of all tokens by id, added ones included; None if the vocabulary is no table."""
    model = tokenizer.get("model")
    table = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(table, list):
        tokens = {str(entry[0]): index for index, entry in enumerate(table) if isinstance(entry, list)}
    elif isinstance(table, dict):
        tokens = dict(table)
    else:
        return None
    for added in tokenizer.get("added_tokens") or []:
        tokens[str(added.get("content"))] = added.get("id")
    text = json.dumps(sorted((str(index), token) for token, index in tokens.items()), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
