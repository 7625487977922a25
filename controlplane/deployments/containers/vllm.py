"""vLLM's own server: its start-up flags for our options, on a host and in SageMaker's vLLM container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controlplane.deployments.containers.channels import ADAPTER_CHANNEL, channel_folder
from controlplane.deployments.containers.options import VLLM_FLAG, LmiOptions
from controlplane.deployments.containers.speculation import speculative_config
from controlplane.deployments.containers.vllm_flags import operators_flag_check
from controlplane.errors import InvalidInputError

_PREFIX: Final = "SM_VLLM_"
"""SM_VLLM_MAX_NUM_SEQS=32 is the container's --max-num-seqs 32; the value `true` is a flag without one."""
_OWN_VARIABLES: Final = frozenset(
    {
        "VLLM_API_KEY",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "VLLM_PLUGINS",
        "VLLM_LORA_RESOLVER_CACHE_DIR",
        "SAGEMAKER_BIND_TO_PORT",
    }
)
_DTYPES: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def vllm_environment(
    options: LmiOptions,
    *,
    model: str,
    revision: str,
    served_name: str,
    accelerators: int,
    adapters: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment variables of SageMaker's vLLM container; see `container_environment`.

    Its resolver loads an adapter of the folder of `adapters` with the first request that names it.
    """
    env = {
        f"{_PREFIX}MODEL": model,
        f"{_PREFIX}SERVED_MODEL_NAME": served_name,
        **_variables(vllm_flags(options, accelerators=max(1, accelerators))),
    }
    if revision:
        env[f"{_PREFIX}REVISION"] = revision
    if options.enable_lora:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "true"
    if options.enable_lora and adapters:
        env["VLLM_PLUGINS"] = "lora_filesystem_resolver"
        env["VLLM_LORA_RESOLVER_CACHE_DIR"] = channel_folder(ADAPTER_CHANNEL)
    return env


def vllm_environment_check(environment: Mapping[str, str]) -> None:
    """Refuse variables that would replace what a deployment sets, and flags that are no operator's.

    Raises:
        InvalidInputError: naming the variable.
    """
    for name, value in environment.items():
        if name.startswith(_PREFIX):
            operators_flag_check(name, name.removeprefix(_PREFIX), value)
            continue
        if name.startswith(VLLM_FLAG):
            text = f"environment {name} has no effect at SageMaker: name it {_PREFIX}{name[len(VLLM_FLAG) :]}"
        elif name in _OWN_VARIABLES:
            text = (
                f"environment {name} would replace what the deployment sets: omit it, or use the field or "
                "option for it"
            )
        else:
            continue
        raise InvalidInputError(text, field="environment")


def _variables(flags: list[str]) -> dict[str, str]:
    """Return command-line flags as the container's variables."""
    found, name = dict[str, str](), ""
    for word in flags:
        if word.startswith("--"):
            name = _PREFIX + word.removeprefix("--").upper().replace("-", "_")
            found[name] = "true"
        else:
            found[name] = word
    return found


def vllm_flags(options: LmiOptions, *, accelerators: int = 0) -> list[str]:
    """Return the flags of `vllm serve` for these options, without those that name the model.

    Args:
        accelerators: GPUs of a copy, where `tensor_parallel` does not say; 0 leaves it to vLLM.
    """
    flags = [
        # Usage reports say how many tokens of the prompt came from the prefix cache.
        "--enable-prompt-tokens-details",
        "--max-num-seqs",
        str(options.max_rolling_batch_size),
        "--gpu-memory-utilization",
        f"{options.gpu_memory_utilization:g}",
    ]
    if parallel := options.tensor_parallel or accelerators:
        flags += ["--tensor-parallel-size", str(parallel)]
    if options.max_model_len:
        flags += ["--max-model-len", str(options.max_model_len)]
    if options.dtype != "auto":
        flags += ["--dtype", _DTYPES[options.dtype]]
    if options.quantize:
        flags += ["--quantization", options.quantize]
    if options.trust_remote_code:
        flags.append("--trust-remote-code")
    if not options.prefix_caching:
        flags.append("--no-enable-prefix-caching")
    if options.speculation != "off":
        config = speculative_config(options.speculation, options.speculation_tokens, options.draft_model)
        flags += ["--speculative-config", config]
    return [*flags, *_adapter_flags(options)] if options.enable_lora else flags


def _adapter_flags(options: LmiOptions) -> list[str]:
    flags = [
        "--enable-lora",
        "--max-loras",
        str(options.max_loras),
        "--max-lora-rank",
        str(options.max_lora_rank),
        "--max-cpu-loras",
        str(options.cpu_loras),
    ]
    return [*flags, "--fully-sharded-loras"] if options.fully_sharded_loras else flags
