"""Our own worker, as `python -m worker_engine` serves."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.engine.contender import CONTEXT, MAX_STREAMS, Contender
from benchmarks.engine.workload import Request


class Graftwork(Contender):
    name = "graftwork"

    @staticmethod
    def installed() -> bool:
        return True

    def command(self) -> list[str]:
        options = {
            "model": self.model,
            "served-model-name": "base",
            "port": self.port,
            "max-model-len": CONTEXT,
            "max-num-seqs": MAX_STREAMS,
            "adapter-cache-dir": self.scratch / "adapters",
        }
        flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        return [sys.executable, "-m", "worker_engine", *flags]

    def fields(self, request: Request) -> dict[str, Any]:
        if request.adapter is None:
            return {"model": "base"}
        ref = self.adapters[request.adapter].ref
        return {"model": ref.name, "adapter": ref.to_dict()}
