"""Flags of `vllm serve` that an operator may give a copy, on a host or at SageMaker.

They are whole names: vLLM's argparse takes any unambiguous beginning of a flag for the flag. Left out are
flags that the deployment sets itself, that name code to import (`--middleware`, `--logits-processors`,
`--worker-cls`, `--tool-parser-plugin`), that start further servers (`--data-parallel-size`), that let clients
send templates, or that log prompts.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.errors import InvalidInputError

_NUMBER: Final = re.compile(r"-[0-9.]+")
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


def operators_flag_check(variable: str, flag: str, value: str) -> None:
    """Refuse a flag unless it is an operator's by its whole name, with no second one in its value.

    Args:
        variable: name of the environment variable, for the message.
        flag: the variable's part that names the flag, such as `MAX_LOGPROBS`.

    Raises:
        InvalidInputError: otherwise.
    """
    name = flag.lower().replace("_", "-")
    if name not in OPERATORS_FLAGS:
        raise InvalidInputError(
            f"environment {variable}: --{name} is no flag that operators may set. Use the deployment's field "
            f"or option for it, or one of {', '.join(sorted(OPERATORS_FLAGS))}, by its whole name",
            field="environment",
        )
    if value.startswith("-") and not _NUMBER.fullmatch(value):
        text = f"environment {variable}: a flag's value must not start with -, which begins another flag"
        raise InvalidInputError(text, field="environment")
