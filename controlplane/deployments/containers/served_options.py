"""Options that have an effect in the servers of each image family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from controlplane.deployments.containers.images import Family

_LORA_SERVERS: Final[Mapping[str, None]] = dict.fromkeys(
    (
        "enable_lora",
        "tensor_parallel",
        "max_rolling_batch_size",
        "max_model_len",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
        "fully_sharded_loras",
        "dtype",
        "quantize",
        "gpu_memory_utilization",
        "trust_remote_code",
    )
)
"""Options that LMI, Triton and vLLM have in common."""
SERVED: Final[Mapping[Family, Mapping[str, tuple[Any, ...] | None]]] = {
    Family.LMI: {
        **_LORA_SERVERS,
        "lora_extra_vocab_size": None,
        "rolling_batch": None,
        "prefix_caching": None,
        "speculation": None,
        "speculation_tokens": None,
        "draft_model": None,
        "accept_eula": None,
    },
    Family.TGI: {
        "enable_lora": None,
        "tensor_parallel": None,
        "max_rolling_batch_size": None,
        "max_model_len": None,
        "dtype": ("fp16", "bf16"),
        "quantize": None,
        "gpu_memory_utilization": None,
        "trust_remote_code": None,
        "speculation": ("ngram",),
        "speculation_tokens": None,
    },
    Family.TRITON: _LORA_SERVERS,
    Family.PYTORCH: {
        "enable_lora": None,
        "tensor_parallel": (1,),
        "max_model_len": None,
        "dtype": ("fp16", "bf16", "fp32"),
        "trust_remote_code": None,
    },
    Family.VLLM: {
        **_LORA_SERVERS,
        "prefix_caching": None,
        "speculation": ("ngram", "draft"),
        "speculation_tokens": None,
        "draft_model": None,
    },
    Family.WORKER: {
        "tensor_parallel": (1,),
        "max_rolling_batch_size": None,
        "max_model_len": None,
        "max_loras": None,
        "dtype": ("bf16", "fp32"),
        "rolling_batch": ("vllm",),
        "speculation": None,
        "speculation_tokens": None,
        "draft_model": None,
    },
}
"""Options with an effect, by family, and their supported values besides the default; None for all."""
_FAMILY_TITLES: Final = {
    Family.LMI: "LMI",
    Family.TGI: "TGI",
    Family.TRITON: "Triton",
    Family.PYTORCH: "PyTorch",
    Family.VLLM: "vLLM",
    Family.WORKER: "Graftwork worker",
}


def option_servers(option: str) -> tuple[str, ...]:
    """Return the titles of the servers in which an option has an effect."""
    # A family's only value of enable_lora says what it does anyway.
    return tuple(
        title
        for family, title in _FAMILY_TITLES.items()
        if option in SERVED[family] and (option != "enable_lora" or SERVED[family][option] is None)
    )
