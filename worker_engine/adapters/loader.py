"""From an AdapterRef to weights: fetch into the content-addressed cache, check, parse.

Blocking throughout; the adapter pool runs it in threads.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.config import AdapterConfigError, LoraConfig
from worker_engine.adapters.disk_cache import AdapterDiskCache, files_digest
from worker_engine.errors import AdapterRefused, AdapterUnavailable
from worker_engine.model_config import LORA_MODULES, ModelConfig
from worker_engine.protocol import ADAPTER_FILES, AdapterRef

_KEY: Final = re.compile(
    r"base_model\.model\.(model\.layers\.(\d{1,4})\.(self_attn|mlp)\.(\w+))\.lora_([AB])\.weight"
)
_CONFIG_LIMIT: Final = 1 << 20


class AdapterLoader:
    """Fetches and checks adapters for one model."""

    def __init__(
        self,
        model: ModelConfig,
        cache_dir: Path,
        *,
        max_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
        s3_endpoint_url: str | None = None,
        max_cache_bytes: int = 1 << 40,
    ) -> None:
        """`max_bytes` bounds one adapter's file, `max_cache_bytes` all files in `cache_dir`."""
        self._model, self._max_bytes = model, max_bytes
        self._cache = AdapterDiskCache(cache_dir, max_bytes=max_cache_bytes)
        self._dtype, self._device = dtype, device
        self._s3_endpoint_url = s3_endpoint_url

    def load(self, ref: AdapterRef) -> Adapter:
        """Side effect: leaves the files in the cache folder.

        Raises:
            AdapterUnavailable: the files could not be fetched (a retry may help).
            AdapterRefused: they are not what the reference says, or do not fit this model.
        """
        files = self._read(ref)
        try:
            config = LoraConfig.from_bytes(files["adapter_config.json"])
        except AdapterConfigError as error:
            raise AdapterRefused(str(error)) from error
        try:
            tensors = load_safetensors(files["adapter_model.safetensors"])
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise AdapterRefused(f"adapter_model.safetensors is not a safetensors file: {error}") from error
        return self._build(ref, config, tensors)

    def is_cached(self, ref: AdapterRef) -> bool:
        """Whether a load would find the files on disk."""
        return ref.sha256 in self._cache

    def _read(self, ref: AdapterRef) -> dict[str, bytes]:
        """The very bytes that were hashed are parsed; a cached copy that rotted is fetched again."""
        if (cached := self._cache.read(ref.sha256)) is not None:
            return cached
        files = {name: self._fetch(ref.uri, name) for name in ADAPTER_FILES}
        if (digest := files_digest(files)) != ref.sha256:
            raise AdapterRefused(
                f"adapter {ref.name}: the files at its uri have digest {digest}, expected {ref.sha256}"
            )
        self._cache.store(ref.sha256, files)
        return files

    def _fetch(self, uri: str, name: str) -> bytes:
        limit = _CONFIG_LIMIT if name.endswith(".json") else self._max_bytes
        parts = urllib.parse.urlsplit(uri)
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            data = _fetch_file(Path(urllib.parse.unquote(parts.path)) / name, limit)
        elif parts.scheme == "s3" and parts.netloc:
            key = f"{parts.path.strip('/')}/{name}".lstrip("/")
            data = self._fetch_s3(parts.netloc, key, limit)
        else:
            raise AdapterRefused(f"adapter.uri must be file:///... or s3://..., got {uri!r}", param="adapter")
        if len(data) > limit:
            raise AdapterRefused(f"{name} is larger than {limit} bytes")
        return data

    def _fetch_s3(self, bucket: str, key: str, limit: int) -> bytes:
        # boto3 costs 0.3 s to import: only workers that meet an s3:// adapter pay it.
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = boto3.session.Session().client("s3", endpoint_url=self._s3_endpoint_url)
            body = client.get_object(Bucket=bucket, Key=key)["Body"]
            data: bytes = body.read(limit + 1)
            body.close()
        except (BotoCoreError, ClientError) as error:
            raise AdapterUnavailable(f"cannot fetch s3://{bucket}/{key}: {error}") from error
        return data

    def _build(self, ref: AdapterRef, config: LoraConfig, tensors: Mapping[str, torch.Tensor]) -> Adapter:
        halves: dict[tuple[int, str, str], dict[str, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            layer, module, path, side = self._place(key)
            self._check(key, tensor, config.rank_of(path), module, side)
            halves.setdefault((layer, module, path), {})[side] = tensor
        layers: list[dict[str, LoraPair]] = [{} for _ in range(self._model.num_layers)]
        for (layer, module, path), pair in halves.items():
            if missing := {"A", "B"} - set(pair):
                raise AdapterRefused(f"tensor base_model.model.{path}.lora_{missing.pop()}.weight is missing")
            a = pair["A"].to(self._device, self._dtype).contiguous()
            b = (pair["B"].float() * config.scaling_of(path)).T.to(self._device, self._dtype).contiguous()
            # Once more after scaling and rounding: an infinite B times a neighbour's zeroed column is NaN.
            if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
                raise AdapterRefused(f"weights of {path} overflow {self._dtype} once scaled")
            layers[layer][module] = LoraPair(a, b)
        pairs = [pair for by_module in layers for pair in by_module.values()]
        if not pairs:
            raise AdapterRefused("adapter_model.safetensors holds no LoRA weights")
        if (rank := max(pair.rank for pair in pairs)) > ref.rank:
            raise AdapterRefused(f"adapter {ref.name} has rank {rank}, its reference says {ref.rank}")
        return Adapter(ref.sha256, tuple(layers), sum(pair.nbytes for pair in pairs))

    def _place(self, key: str) -> tuple[int, str, str, str]:
        """(layer, module, module path, A or B) of a tensor's name."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise AdapterRefused(
                f"tensor {key} is not served: expected base_model.model.model.layers.<n>.(self_attn|mlp)."
                f"<module>.lora_(A|B).weight with module one of {', '.join(LORA_MODULES)}"
            )
        path, layer, parent, module, side = match.groups()
        home = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        if module not in LORA_MODULES or parent != home:
            raise AdapterRefused(f"tensor {key}: {parent}.{module} is not a module of this model")
        if int(layer) >= self._model.num_layers:
            raise AdapterRefused(f"tensor {key}: the model has {self._model.num_layers} layers")
        return int(layer), module, path, side

    def _check(self, key: str, tensor: torch.Tensor, rank: int, module: str, side: str) -> None:
        out_features, in_features = self._model.linear_shapes[module]
        expected = (rank, in_features) if side == "A" else (out_features, rank)
        if tuple(tensor.shape) != expected:
            raise AdapterRefused(f"tensor {key} has shape {list(tensor.shape)}, expected {list(expected)}")
        if not tensor.is_floating_point():
            raise AdapterRefused(f"tensor {key} is {tensor.dtype}, expected floating point")
        if not bool(torch.isfinite(tensor.float()).all()):
            raise AdapterRefused(f"tensor {key} holds NaN or infinite values")


def _fetch_file(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise AdapterRefused(f"{path.name} is larger than {limit} bytes")
            return file.read(limit + 1)
    except OSError as error:
        raise AdapterUnavailable(f"cannot read {path}: {error.strerror}") from error
