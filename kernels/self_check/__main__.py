"""`python -m kernels.self_check TASK`: the checks of `verify`, a JSON line for each as it ends."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

from kernels.self_check.shapes import ModelShapes


def main() -> int:
    task: dict[str, Any] = json.loads(sys.argv[1])
    fields = task["shapes"]
    fields["linears"] = tuple((inner, tuple(widths)) for inner, widths in fields["linears"])
    fields["windows"] = tuple(fields["windows"])
    fields["groups"] = tuple((group, zeros) for group, zeros in fields["groups"])
    shapes, device = ModelShapes(**fields), torch.device(task["device"])
    torch.manual_seed(0)
    for op, place in task["checks"].items():
        module, name = place.split(":")
        problem = ""
        try:
            getattr(importlib.import_module(module), name)(shapes, device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), "")
            problem = f"{type(error).__name__}: {first}"[:500]
        print(json.dumps({"op": op, "problem": problem}), flush=True)
        if problem:
            return 1  # the device may be broken for this process: who asked starts another for the rest
    return 0


if __name__ == "__main__":
    sys.exit(main())
