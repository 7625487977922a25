"""vLLM's own server: its start-up flags for our options, on a host and in SageMaker's vLLM container."""

from __future__ import annotations

from typing import Final

from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.speculation import speculative_config

_DTYPES: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


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
