"""Flags of vLLM that a deployment sets, so that its environment must not."""

from __future__ import annotations

from typing import Final

VLLM_OWN_FLAGS: Final = frozenset(
    {
        "model",
        "served-model-name",
        "host",
        "port",
        "uds",
        "api-key",
        "download-dir",
        "shutdown-timeout",
        "api-server-count",
        "root-path",
        "enable-lora",
        "lora-modules",
        "max-loras",
        "max-lora-rank",
        "max-cpu-loras",
        "max-num-seqs",
        "max-model-len",
        "dtype",
        "quantization",
        "tensor-parallel-size",
        "gpu-memory-utilization",
        "trust-remote-code",
        "speculative-config",
        "config",
        "ssl-keyfile",
        "ssl-certfile",
    }
)
"""Flags by which a copy is found, called and configured. With several API servers each would have adapters of
its own."""
