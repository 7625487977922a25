"""vLLM's CPU build. GRAFTWORK_VLLM names its `vllm` program, in an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from benchmarks.engine.adapters import RANK
from benchmarks.engine.contender import CONTEXT, MAX_STREAMS, Contender
from benchmarks.engine.workload import Request


class VllmCpu(Contender):
    name = "vllm"

    @staticmethod
    def installed() -> bool:
        return bool(os.environ.get("GRAFTWORK_VLLM"))

    def environment(self) -> Mapping[str, str]:
        """vLLM by itself leaves one core to its HTTP server, which is half of a machine with two.

        Whoever finds it faster so says VLLM_CPU_OMP_THREADS_BIND=auto.
        """
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", cores),
            "VLLM_NO_USAGE_STATS": "1",
        }

    def command(self) -> list[str]:
        flags = f"--port {self.port} --max-model-len {CONTEXT} --max-num-seqs {MAX_STREAMS} --enforce-eager"
        command = [os.environ["GRAFTWORK_VLLM"], "serve", str(self.model), "--served-model-name", "base"]
        command += flags.split()
        if not self.adapters:
            return command
        count = len(self.adapters)
        lora = f"--enable-lora --max-lora-rank {RANK} --max-loras {min(count, MAX_STREAMS)}"
        modules = [f"{index}={adapter.folder}" for index, adapter in enumerate(self.adapters)]
        return [*command, *lora.split(), "--max-cpu-loras", str(count), "--lora-modules", *modules]

    def fields(self, request: Request) -> dict[str, Any]:
        return {"model": "base" if request.adapter is None else str(request.adapter)}
