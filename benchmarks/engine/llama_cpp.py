"""llama.cpp's server on a bf16 GGUF that its own scripts make of the same checkpoint and adapters.

GRAFTWORK_LLAMA_SERVER names the program, GRAFTWORK_LLAMA_CONVERT the folder of its conversion scripts,
GRAFTWORK_LLAMA_PYTHON a Python that has what they import (torch, transformers, sentencepiece), by default
this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.engine.contender import CONTEXT, MAX_STREAMS, THREADS, Contender
from benchmarks.engine.workload import Request

_CALLS: Final = """
import json, runpy, sys
for arguments in json.load(sys.stdin):
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
"""


class LlamaCpp(Contender):
    name = "llama.cpp"

    @staticmethod
    def installed() -> bool:
        return all(os.environ.get(f"GRAFTWORK_LLAMA_{name}") for name in ("SERVER", "CONVERT"))

    def command(self) -> list[str]:
        """One slot a stream. The host cache of old prompts is off: none comes back, and it costs copies."""
        model = self.scratch / "model.gguf"
        adapters = [self.scratch / f"{index}.gguf" for index in range(len(self.adapters))]
        _convert("convert_hf_to_gguf.py", [[str(self.model), *_into(model)]])
        base = ("--base", str(self.model))
        _convert(
            "convert_lora_to_gguf.py",
            [
                [str(adapter.folder), *base, *_into(path)]
                for adapter, path in zip(self.adapters, adapters, strict=True)
            ],
        )
        flags = f"-t {THREADS} -tb {THREADS} -np {MAX_STREAMS} -c {MAX_STREAMS * CONTEXT} --cache-ram 0"
        return [
            os.environ["GRAFTWORK_LLAMA_SERVER"],
            *f"-m {model} --port {self.port} {flags} --no-webui --lora-init-without-apply".split(),
            *(["--lora", ",".join(map(str, adapters))] if adapters else []),
        ]

    def fields(self, request: Request) -> dict[str, Any]:
        """Adapters that are not named are left out; with none named all are computed, at scale 0."""
        adapter, scale = (0, 0.0) if request.adapter is None else (request.adapter, 1.0)
        return {"lora": [{"id": adapter, "scale": scale}]}


def _into(target: Path) -> tuple[str, ...]:
    return "--outtype", "bf16", "--outfile", str(target)


def _convert(script: str, calls: list[list[str]]) -> None:
    """Runs a conversion script once for each list of arguments, in one process: it loads for 6 s."""
    folder = os.environ["GRAFTWORK_LLAMA_CONVERT"]
    done = subprocess.run(
        [os.environ.get("GRAFTWORK_LLAMA_PYTHON", sys.executable), "-c", _CALLS],
        input=json.dumps([[str(Path(folder) / script), *arguments] for arguments in calls]),
        cwd=folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"llama.cpp's {script} failed:\n{done.stderr[-2000:]}")
