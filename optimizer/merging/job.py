"""Writes a checkpoint with an adapter merged in; memory is bounded by the adapter and one block of rows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from contracts.adapters.config import AdapterConfigError
from contracts.adapters.reference import AdapterRef, engine_name
from contracts.recipes.model_facts import Checkpoint
from contracts.recipes.progress import Code, JobError, Reporter
from optimizer.copying import copy_files, source_changed
from optimizer.merging.changes import Changes, TensorChange
from optimizer.merging.shards import StoredTensor, read_header, rewrite, write_one
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.base_weights import BaseWeights
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.errors import RequestError
from worker_engine.models import FAMILIES

_INDEX: Final = "model.safetensors.index.json"
_CONFIG: Final = "config.json"


def merge(model: Path, source: Checkpoint, adapter: Path, target: Path, reporter: Reporter) -> None:
    """Write the checkpoint `model` to `target` with the adapter in the folder `adapter` merged.

    Each changed tensor is W + s B A in float32, rounded once to the checkpoint's dtype; all others keep
    their bytes. Weight files are finished one by one, and a later call keeps the finished ones.

    Args:
        source: digests of the checkpoint's files.

    Raises:
        JobError: bad_data if the adapter does not fit the model; incompatible if it cannot be merged, naming
            the module; source_changed.
    """
    reporter.progress(0.0, "reading the adapter")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".adapter-") as scratch:
        loaded = _load(model, adapter, Path(scratch))
    if loaded.embeds_only:
        raise JobError(
            Code.INCOMPATIBLE,
            "the adapter was trained for embeddings, and a merged copy would lose its pooling: serve it "
            "unmerged",
        )
    base = BaseWeights(model, torch.float32)
    if base.config.experts is not None:
        raise JobError(
            Code.INCOMPATIBLE,
            f"{base.config.architecture} has experts, whose checkpoints are not merged: serve the adapter "
            "unmerged",
        )
    changes = Changes.collect(loaded, base, FAMILIES[base.config.architecture].prefix)
    weights = [name for name in source.files if name.endswith(".safetensors")]
    target.mkdir(parents=True, exist_ok=True)
    _Writer(model, source, changes, target, reporter).write(weights)


def _load(model: Path, folder: Path, scratch: Path) -> Adapter:
    """Return the adapter in float32, read and checked as the worker does."""
    try:
        loader = AdapterLoader(model, scratch, dtype=torch.float32, device=torch.device("cpu"))
        uri = f"{folder.resolve().as_uri()}/"
        digest, rank = loader.identify(uri)
        name = engine_name(tenant="merge", adapter="adapter", version=1, sha256=digest)
        return loader.load(AdapterRef(name, uri, digest, rank))
    except (RequestError, AdapterConfigError) as error:
        raise JobError(Code.BAD_DATA, f"the adapter cannot be merged into this model: {error}") from error


class _Writer:
    def __init__(
        self, model: Path, source: Checkpoint, changes: Changes, target: Path, reporter: Reporter
    ) -> None:
        self._model, self._source, self._changes = model, source, changes
        self._target, self._reporter = target, reporter
        self._read, self._message = 0, ""

    def write(self, weights: list[str]) -> None:
        stored = {name: read_header(self._model / name)[1] for name in weights}
        names = {tensor.name for tensors in stored.values() for tensor in tensors}
        adds_head = self._changes.unties and self._changes.head not in names
        files = self._renamed(weights) if adds_head else {name: name for name in weights}
        for name in weights:
            self._rewrite(name, files[name], stored[name])
        if adds_head:
            self._add_head(stored, files)
        rewritten = [_CONFIG] * self._changes.unties + [_INDEX] * adds_head
        self._copy_others({*weights, *rewritten})

    def _rewrite(self, name: str, new_name: str, tensors: list[StoredTensor]) -> None:
        goal, (size, sha256) = self._target / new_name, self._source.files[name]
        self._message = f"merging {name}"
        if goal.is_file() and goal.stat().st_size == size:
            # An unfinished run wrote it: files appear by a rename after they are on the disk.
            self._report(size)
            return
        changes = {
            tensor.name: change
            for tensor in tensors
            if (change := self._changes.by_tensor.get(tensor.name)) is not None
        }
        if rewrite(self._model / name, goal, changes, self._report) != sha256:
            goal.unlink()
            raise source_changed(self._model / name)

    def _renamed(self, weights: list[str]) -> dict[str, str]:
        """Return new file names as shards where the checkpoint is one file, which readers would prefer."""
        if (self._model / _INDEX).is_file():
            return {name: name for name in weights}
        count = len(weights) + 1
        return {
            name: f"model-{number:05}-of-{count:05}.safetensors" for number, name in enumerate(weights, 1)
        }

    def _add_head(self, stored: dict[str, list[StoredTensor]], files: dict[str, str]) -> None:
        """Write the head that the adapter has unties from the embedding, and the index that names it."""
        changes, count = self._changes, len(files) + 1
        sharded = (self._model / _INDEX).is_file()
        head = "model-head.safetensors" if sharded else f"model-{count:05}-of-{count:05}.safetensors"
        name, tensor = self._embedding(stored)
        change = changes.by_tensor.get(changes.head, TensorChange())
        write_one(self._model / name, tensor, changes.head, change, self._target / head, lambda size: None)
        weight_map = {item.name: files[file] for file, items in stored.items() for item in items}
        weight_map[changes.head] = head
        total = sum(item.stop - item.start for items in stored.values() for item in items)
        index = {
            "metadata": {"total_size": total + tensor.stop - tensor.start},
            "weight_map": dict(sorted(weight_map.items())),
        }
        (self._target / _INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")

    def _embedding(self, stored: dict[str, list[StoredTensor]]) -> tuple[str, StoredTensor]:
        return next(
            (file, tensor)
            for file, tensors in stored.items()
            for tensor in tensors
            if tensor.name == self._changes.embedding
        )

    def _copy_others(self, left_out: set[str]) -> None:
        """Copy all other files; an untied checkpoint's config.json says that the head is its own."""
        files = self._source.files
        others = Checkpoint({name: files[name] for name in files if name not in left_out})
        if self._changes.unties:
            config: dict[str, Any] = json.loads((self._model / _CONFIG).read_text(encoding="utf-8"))
            config["tie_word_embeddings"] = False
            if isinstance(config.get("text_config"), dict):
                config["text_config"]["tie_word_embeddings"] = False
            (self._target / _CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
        copy_files(self._model, others, self._target, self._reporter)

    def _report(self, read: int) -> None:
        self._read += read
        self._reporter.progress(min(self._read / max(self._source.size, 1), 0.99), self._message)
