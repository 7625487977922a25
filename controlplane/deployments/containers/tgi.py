"""Environment of text-generation-inference's SageMaker images, and the adapters that they load.

Variables are those of its sagemaker-entrypoint.sh and launcher (versions 2.4.0 to 3.3.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controlplane.deployments.containers.options import LmiOptions
from controlplane.errors import InvalidInputError

ADAPTERS_VARIABLE: Final = "LORA_ADAPTERS"
MAX_VALUE_LENGTH: Final = 1024
"""Longest value of a SageMaker environment variable."""
_DTYPES: Final = {"fp16": "float16", "bf16": "bfloat16"}
_MIN_PREFILL_TOKENS: Final = 4096
_FIXED: Final = {
    # TGI has no cache salt, so tenants would see by a prompt's time what others have asked.
    "PREFIX_CACHING": "0",
    # As many as the gateway accepts; TGI's own bounds are 4 and 5.
    "MAX_STOP_SEQUENCES": "16",
    "MAX_TOP_N_TOKENS": "20",
}


def tgi_environment(
    options: LmiOptions, *, model: str, revision: str, accelerators: int, adapters: Mapping[str, str]
) -> dict[str, str]:
    """Return the container's environment variables; see `container_environment`."""
    env = {
        "HF_MODEL_ID": model,
        "SM_NUM_GPUS": str(options.tensor_parallel or max(1, accelerators)),
        # Running and waiting requests; more are refused. The batch's own bound counts where TGI cannot
        # compute prompts in chunks.
        "MAX_CONCURRENT_REQUESTS": str(4 * options.max_rolling_batch_size),
        "MAX_BATCH_SIZE": str(options.max_rolling_batch_size),
        "CUDA_MEMORY_FRACTION": f"{options.gpu_memory_utilization:g}",
        **_FIXED,
    }
    if revision:
        env["HF_MODEL_REVISION"] = revision
    if length := options.max_model_len:
        env["MAX_TOTAL_TOKENS"] = str(length)
        env["MAX_INPUT_TOKENS"] = str(length - 1)
        env["MAX_BATCH_PREFILL_TOKENS"] = str(max(length, _MIN_PREFILL_TOKENS))
    if options.dtype in _DTYPES:
        env["DTYPE"] = _DTYPES[options.dtype]
    if options.quantize:
        env["QUANTIZE"] = options.quantize
    if options.trust_remote_code:
        env["TRUST_REMOTE_CODE"] = "true"
    if options.speculation == "ngram":
        env["SPECULATE"] = str(options.speculation_tokens)
    if options.enable_lora and adapters:
        env[ADAPTERS_VARIABLE] = _listed(adapters)
    return env


def adapters_in(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the engine names of the adapters that a TGI container with this environment loads."""
    listed = environment.get(ADAPTERS_VARIABLE, "")
    return frozenset(item.partition("=")[0] for item in listed.split(",") if item)


def _listed(adapters: Mapping[str, str]) -> str:
    listed = ",".join(f"{name}={folder}" for name, folder in sorted(adapters.items()))
    if len(listed) > MAX_VALUE_LENGTH:
        raise InvalidInputError(
            f"{len(adapters)} adapters do not fit into {ADAPTERS_VARIABLE}, which TGI reads at its start and "
            f"SageMaker limits to {MAX_VALUE_LENGTH} characters: choose an lmi image, set adapter_scope to "
            "named, or delete adapter versions"
        )
    return listed
