"""LMI's options as a typed value: defaults, bounds, and the environment variables that they become."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from contracts.recipes.recipe import Speculation
from controlplane.deployments.containers.channels import DRAFT_CHANNEL, channel_folder
from controlplane.deployments.containers.compiled_engines import (
    compiled_engine_environment,
    compiled_engine_options,
)
from controlplane.deployments.containers.images import DISTINCT, Family, Image
from controlplane.deployments.containers.served_options import SERVED
from controlplane.deployments.containers.speculation import (
    METHODS,
    PROVIDED,
    speculation_error,
    speculative_config,
)
from controlplane.errors import InvalidInputError

RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM compiles its kernels for."""
DTYPES: Final = ("auto", "fp16", "bf16", "fp32")
QUANTIZE: Final = ("", "awq", "fp8", "gptq", "bitsandbytes")
ROLLING_BATCHES: Final = ("auto", "disable", "vllm", "lmi-dist", "trtllm")
FUSED, ENDPOINT = "fused", "endpoint"
"""Hosting modes in which we place no adapters."""
_OF_ADAPTERS: Final = (
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "fully_sharded_loras",
    "lora_extra_vocab_size",
)
_WORKER_REMEDIES: Final = {
    "enable_lora": "it always serves adapters",
    "tensor_parallel": "it uses one GPU; choose an lmi image for several",
    "max_lora_rank": "it serves every rank",
    "max_cpu_loras": "set GRAFTWORK_WORKER_FLAG_ADAPTER_CACHE_GIB in environment",
    "dtype": "set auto, bf16 or fp32",
    "quantize": "use a quantized variant of the base model, or an lmi image",
    "gpu_memory_utilization": "set GRAFTWORK_WORKER_FLAG_MEMORY_GIB in environment",
}
WORKER_VARIABLES: Final = (
    "GRAFTWORK_S3_ENDPOINT_URL",
    "GRAFTWORK_WORKER_",
    "GRAFTWORK_TUNED_",
    "AWS_",
    "OTEL_",
    "OMP_",
    "CUDA_",
    "NVIDIA_",
)
"""Starts of the environment variables that a worker on a host reads."""
VLLM_VARIABLES: Final = ("VLLM_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "HF_", "AWS_")
"""Starts of the environment variables that vLLM on a host reads."""
VLLM_FLAG: Final = "GRAFTWORK_VLLM_FLAG_"
"""GRAFTWORK_VLLM_FLAG_BLOCK_SIZE=32 in a deployment's environment becomes --block-size 32."""
_ENTRYPOINT: Final = "djl_python.lmi_vllm.vllm_async_service"

_SECRET: Final = re.compile(
    r"^(?!(.*_)?(max|min|num)_|GRAFTWORK_WORKER_FLAG_SPECULATION_TOKENS$).*token(?!iz)|secret|passw|passphrase|credential|keys?(?![a-z])",
    re.I,
)
"""Does not match MAX_TOTAL_TOKENS or TOKENIZERS_PARALLELISM."""


@dataclass(frozen=True, slots=True)
class LmiOptions:
    """Options of AWS's large-model-inference container.

    Attributes:
        tensor_parallel: GPUs per copy; 0 uses the compute requirements.
        max_rolling_batch_size: sequences that run together.
        max_model_len: context length in tokens; 0 uses the checkpoint's.
        max_loras: adapters in device memory at once.
        max_lora_rank: highest adapter rank; one of RANKS.
        max_cpu_loras: adapters in host memory, at least `max_loras`; 0 means four times `max_loras`.
        lora_extra_vocab_size: tokens that an adapter may add; only for images that support it.
        rolling_batch: "auto" uses the asynchronous handler if the image has one, else vLLM's.
        gpu_memory_utilization: share of each GPU's memory.
        prefix_caching: reuse the KV cache of prompts that begin alike.
        speculation: speculative decoding; LMI images and the bundled worker.
        speculation_tokens: most draft tokens per step.
        draft_model: `s3://...` or, for LMI, `hf://...`; at workers on a host, a folder. Only with "draft".
            Hosting endpoint: `s3://...` of the draft model that SageMaker provides, with "sagemaker".
        accept_eula: the license of the model's files in S3 is accepted, as JumpStart demands for gated
            models; hosting endpoint, where SageMaker itself downloads the files.
    """

    enable_lora: bool = True
    tensor_parallel: int = 0
    max_rolling_batch_size: int = 32
    max_model_len: int = 0
    max_loras: int = 4
    max_lora_rank: int = 16
    max_cpu_loras: int = 0
    fully_sharded_loras: bool = False
    lora_extra_vocab_size: int = 0
    dtype: str = "auto"
    quantize: str = ""
    rolling_batch: str = "auto"
    gpu_memory_utilization: float = 0.9
    trust_remote_code: bool = False
    prefix_caching: bool = True
    speculation: str = "off"
    speculation_tokens: int = Speculation().tokens
    draft_model: str = ""
    accept_eula: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, Any], image: Image, *, hosting: str = "") -> Self:
        """Return validated options for `image`.

        Args:
            hosting: the deployment's hosting mode; FUSED serves no adapters, even if the image supports
                them, and ENDPOINT those in the model's own files, if `enable_lora` is set.

        Raises:
            InvalidInputError: an option is unknown, out of bounds, or not valid for this image.
        """
        kinds = {item.name: type(item.default) for item in fields(cls)}
        for name, value in values.items():
            if name not in kinds:
                raise _wrong(name, f"does not exist; existing options: {', '.join(sorted(kinds))}")
            # bool is a subclass of int, and an int is valid where a float is expected.
            wanted = (int, float) if kinds[name] is float else kinds[name]
            if not isinstance(value, wanted) or (isinstance(value, bool) and kinds[name] is not bool):
                raise _wrong(name, f"must be of type {kinds[name].__name__}, got {value!r}")
        fused = _places_none(values, image, hosting)
        made = cls(**{**values, "enable_lora": False} if fused else values)
        made._check(image)
        made._check_hosting(hosting, image)
        # Fused hosting turns adapters off by itself, for every image.
        (replace(made, enable_lora=True) if fused else made)._check_served(image)
        return made

    @property
    def cpu_loras(self) -> int:
        """Number of adapters in host memory."""
        return self.max_cpu_loras or 4 * self.max_loras

    def environment(self, image: Image, *, accelerators: int) -> dict[str, str]:
        """Return the container's environment variables, except those that name the model.

        Args:
            accelerators: GPUs per copy.
        """
        if compiled_engine_options(image) is not None:
            return compiled_engine_environment(self, image, accelerators)
        env = {
            "OPTION_TENSOR_PARALLEL_DEGREE": str(self.tensor_parallel or max(1, accelerators)),
            "OPTION_MAX_ROLLING_BATCH_SIZE": str(self.max_rolling_batch_size),
            "OPTION_GPU_MEMORY_UTILIZATION": f"{self.gpu_memory_utilization:g}",
            "OPTION_DTYPE": self.dtype,
            **self._batching(image),
        }
        if self.max_model_len:
            env["OPTION_MAX_MODEL_LEN"] = str(self.max_model_len)
        if self.quantize:
            env["OPTION_QUANTIZE"] = self.quantize
        if self.trust_remote_code:
            env["OPTION_TRUST_REMOTE_CODE"] = "true"
        if not self.prefix_caching:
            env["OPTION_ENABLE_PREFIX_CACHING"] = "false"
        if self.speculation == PROVIDED:
            env["OPTION_SPECULATIVE_DRAFT_MODEL"] = f"{channel_folder(DRAFT_CHANNEL)}/"
        elif self.speculation != "off":
            env["OPTION_SPECULATIVE_CONFIG"] = speculative_config(
                self.speculation, self.speculation_tokens, self.draft_model
            )
        return {**env, **self._lora()} if self.enable_lora else env

    def _batching(self, image: Image) -> dict[str, str]:
        if self.rolling_batch == "auto" and image.async_mode:
            return {
                "OPTION_ASYNC_MODE": "true",
                "OPTION_ROLLING_BATCH": "disable",
                "OPTION_ENTRYPOINT": _ENTRYPOINT,
            }
        batch = image.rolling_batches[0] if self.rolling_batch == "auto" else self.rolling_batch
        return {"OPTION_ROLLING_BATCH": batch}

    def _lora(self) -> dict[str, str]:
        env = {
            "OPTION_ENABLE_LORA": "true",
            "OPTION_MAX_LORAS": str(self.max_loras),
            "OPTION_MAX_LORA_RANK": str(self.max_lora_rank),
            "OPTION_MAX_CPU_LORAS": str(self.cpu_loras),
        }
        if self.fully_sharded_loras:
            env["OPTION_FULLY_SHARDED_LORAS"] = "true"
        if self.lora_extra_vocab_size:
            env["OPTION_LORA_EXTRA_VOCAB_SIZE"] = str(self.lora_extra_vocab_size)
        return env

    def _check(self, image: Image) -> None:
        for name, low, high in (
            ("tensor_parallel", 0, 32 if image.neuron else 8),
            ("max_rolling_batch_size", 1, 1024),
            ("max_model_len", 0, 10_000_000),
            ("speculation_tokens", 1, 16),
            ("max_loras", 1, 1024),
            ("max_cpu_loras", 0, 100_000),
            ("lora_extra_vocab_size", 0, 4096),
            ("gpu_memory_utilization", 0.1, 0.99),
        ):
            if not low <= getattr(self, name) <= high:
                raise _wrong(name, f"must be from {low} to {high}, got {getattr(self, name)}")
        for name, choices in (
            ("max_lora_rank", RANKS),
            ("dtype", DTYPES),
            ("quantize", QUANTIZE),
            ("rolling_batch", ROLLING_BATCHES),
            ("speculation", METHODS),
        ):
            if getattr(self, name) not in choices:
                listed = ", ".join(repr(choice) for choice in choices)
                raise _wrong(name, f"must be one of {listed}, got {getattr(self, name)!r}")
        if self.max_cpu_loras and self.max_cpu_loras < self.max_loras:
            raise _wrong("max_cpu_loras", f"must be at least max_loras, which is {self.max_loras}")
        if self.lora_extra_vocab_size and not image.extra_vocab:
            raise _wrong("lora_extra_vocab_size", f"is not supported by {image.name}: set it to 0")
        batches = tuple(dict.fromkeys(("auto", *image.rolling_batches)))
        if image.family is Family.LMI and self.rolling_batch not in batches:
            listed = ", ".join(batches)
            raise _wrong(
                "rolling_batch", f"{self.rolling_batch!r} is not supported by {image.name}: use {listed}"
            )
        option, error = speculation_error(image, self.speculation, self.speculation_tokens, self.draft_model)
        if error:
            raise _wrong(option, error)
        if self.enable_lora and not image.lora:
            raise _wrong(
                "enable_lora", f"is not supported by {image.name}: choose an lmi image, or hosting fused"
            )

    def _check_hosting(self, hosting: str, image: Image) -> None:
        """Refuse options that have no effect in the hosting mode. Raises InvalidInputError."""
        if hosting == ENDPOINT and self.enable_lora and image.family in DISTINCT:
            raise _wrong(
                "enable_lora",
                f"has no effect in hosting endpoint with {image.name}: choose hosting preloaded",
            )
        if hosting != ENDPOINT:
            if self.speculation == PROVIDED:
                raise _wrong(
                    "speculation", "'sagemaker' is valid only in hosting endpoint: choose ngram or draft"
                )
            if self.accept_eula:
                raise _wrong("accept_eula", "is valid only in hosting endpoint: omit it")
        if self.enable_lora:
            return
        for name in _OF_ADAPTERS:
            if getattr(self, name) != getattr(type(self)(), name):
                raise _wrong(name, "has no effect, since no adapters are served as configured: omit it")

    def _check_served(self, image: Image) -> None:
        """Refuse values that would have no effect in the image. Raises InvalidInputError."""
        served = compiled_engine_options(image) or SERVED[image.family]
        for item in fields(self):
            value = getattr(self, item.name)
            supported = served.get(item.name, ())
            # SageMaker reads accept_eula, whatever the image.
            if value == item.default or supported is None or value in supported or item.name == "accept_eula":
                continue
            remedy = "omit it, or choose an lmi image"
            if item.name == "speculation":
                remedy = "set it to off, or choose an lmi image"
            elif image.family is Family.WORKER:
                remedy = _WORKER_REMEDIES.get(item.name, remedy)
            name = {Family.WORKER: "the bundled worker", Family.VLLM: "vLLM"}.get(image.family, image.name)
            raise _wrong(item.name, f"{value!r} is not supported by {name}: {remedy}")


def _places_none(values: Mapping[str, Any], image: Image, hosting: str) -> bool:
    """Return True if the hosting mode turns adapters off. Raises InvalidInputError."""
    if hosting == FUSED:
        if values.get("enable_lora") is True:
            raise _wrong("enable_lora", "has no effect in hosting fused, which serves no adapters: omit it")
        return True
    return hosting == ENDPOINT and image.family is not Family.WORKER and not values.get("enable_lora", False)


def _wrong(name: str, text: str) -> InvalidInputError:
    return InvalidInputError(f"options.{name} {text}", field=f"options.{name}")


def secret_variable_check(name: str, *, field: str) -> None:
    """Raise InvalidInputError if the name looks like that of a secret."""
    if _SECRET.search(name):
        raise InvalidInputError(
            f"{name} looks like a secret, which is never stored in clear: let the execution role read it",
            field=field,
        )
