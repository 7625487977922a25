"""Flags of `vllm serve` that an operator may give a copy on a host.

They are whole names: vLLM's argparse takes any unambiguous beginning of a flag for the flag. Left out are
flags that the deployment sets itself, that name code to import (`--middleware`, `--logits-processors`,
`--worker-cls`, `--tool-parser-plugin`), that start further servers (`--data-parallel-size`), that let clients
send templates, or that log prompts.
"""

from __future__ import annotations

from typing import Final

OPERATORS_FLAGS: Final = frozenset(
    {
        # memory and batches
        "block-size",
        "cpu-offload-gb",
        "enable-chunked-prefill",
        "kv-cache-dtype",
        "kv-cache-memory-bytes",
        "long-prefill-token-threshold",
        "mamba-cache-dtype",
        "mamba-ssm-cache-dtype",
        "max-long-partial-prefills",
        "max-num-batched-tokens",
        "max-num-partial-prefills",
        "no-enable-chunked-prefill",
        "num-gpu-blocks-override",
        "prefix-caching-hash-algo",
        "swap-space",
        # execution
        "async-scheduling",
        "attention-backend",
        "disable-cascade-attn",
        "disable-custom-all-reduce",
        "disable-hybrid-kv-cache-manager",
        "enable-expert-parallel",
        "enforce-eager",
        "max-seq-len-to-capture",
        "no-async-scheduling",
        "pipeline-parallel-size",
        "scheduling-policy",
        "seed",
        "stream-interval",
        # model
        "convert",
        "enable-tower-connector-lora",
        "generation-config",
        "hf-overrides",
        "limit-mm-per-prompt",
        "lora-dtype",
        "mm-processor-cache-gb",
        "mm-processor-kwargs",
        "override-generation-config",
        "override-pooler-config",
        "pooler-config",
        "rope-scaling",
        "rope-theta",
        "runner",
        "task",
        "tokenizer-mode",
        # requests
        "chat-template",
        "chat-template-content-format",
        "enable-auto-tool-choice",
        "exclude-tools-when-tool-choice-none",
        "guided-decoding-backend",
        "logprobs-mode",
        "max-logprobs",
        "reasoning-parser",
        "response-role",
        "structured-outputs-config",
        "tool-call-parser",
        # logs
        "disable-log-requests",
        "uvicorn-log-level",
    }
)
