"""`python -m kernels.tune [--op OP] [--out DIR] [--shapes level=value,...] [--budget SECONDS] [--quick]`

Measures an op's configurations on the present GPU and writes what was fastest at each shape, for `tuned.py`
to load. Shapes that are done in the file are left as they are, so that a run resumes where another stopped;
each trial is written as soon as it is made, and a search that ran out of time goes on with what is untried.
`tuning.py` has the search.

Calls rotate among input sets that together exceed the L2 cache several times, as layers follow each other in
a model; they are captured in a graph, and the median of its replays counts.

An op joins with a module `kernels/<op>/tuning.py` that has `TUNING`, a `tuning.Tuning`. Kernels that share a
block size are one op here, so that what they share is chosen once for both.

`--device cpu --quick` does all this at tiny shapes in Triton's interpreter: a test of the procedure. Its file
says measured_on cpu, and no GPU loads it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernels import tuned
from kernels.tuning import Clock, Tuning, candidates, search

if TYPE_CHECKING:
    import torch

OPS: Final = tuple(sorted(file.parent.name for file in Path(__file__).parent.glob("*/tuning.py")))
CACHE_TURNS: Final = 4
"""Size of all input sets together, as a multiple of the L2 cache."""


def tune(tuning: Tuning, clock: Clock, out: Path, wanted: Callable[[tuned.Shape], bool]) -> Path:
    """Measure the shapes that the file lacks, and add each to it.

    Raises:
        ValueError: the file is malformed.
    """
    path = out / tuned.file_name(tuned.gpu_name(clock.device), tuning.op)
    content = tuned.document(path) if path.exists() else _head(tuning, clock.device)
    held = {_key(entry["shape"]): entry for entry in content["entries"]}
    done = {key for key, entry in held.items() if tuned.TRIALS not in entry}
    shapes = [
        shape for shape in tuning.shapes(quick=clock.quick) if wanted(shape) and _key(shape) not in done
    ]
    if shapes:
        count = sum(candidates(tuning, shape, clock) for shape in shapes)
        mean = count / len(shapes)
        print(f"{tuning.op}: {len(shapes)} shapes, {mean:.0f} candidates each or more, {count} in all")

    def keep(entry: dict[str, Any]) -> None:
        held[_key(entry["shape"])] = entry
        _write(path, content | {"entries": list(held.values())})

    for shape in shapes:
        if clock.over:
            print("out of time; a further run resumes here")
            break
        likely = _nearest(tuning, held.values(), shape)
        entry = search(tuning, shape, clock, held=held.get(_key(shape)), likely=likely, keep=keep)
        if entry is not None:
            keep(entry)
            _report(entry)
    return path


def _key(shape: tuned.Shape) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(shape.items()))


def _nearest(tuning: Tuning, held: Iterable[Mapping[str, Any]], shape: tuned.Shape) -> Any:
    """Return the fastest configuration of the nearest other shape; None if there is none."""
    others = tuple(
        tuned.Entry(entry["shape"], tuning.parse(entry["config"]), entry["microseconds"])
        for entry in held
        if entry["shape"] != dict(shape)
    )
    return tuned.Tuned(others, tuning.levels).nearest(shape).config if others else None


def _report(entry: Mapping[str, Any]) -> None:
    numbers = ", ".join(f"{name} {value}" for name, value in entry["shape"].items())
    more = "; out of time, a further run tries the others" if tuned.TRIALS in entry else ""
    times = f"{entry['default_microseconds']} -> {entry['microseconds']} us"
    print(f"{numbers}: {times} of {entry['tried']} tried{more}", flush=True)


def _head(tuning: Tuning, device: torch.device) -> dict[str, Any]:
    import torch
    import triton

    return {
        "op": tuning.op,
        "gpu": tuned.gpu_name(device),
        "measured_on": device.type,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "entries": [],
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file atomically: a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {key: value for key, value in content.items() if key != "entries"}
    entries = ",\n".join(f"  {json.dumps(entry)}" for entry in content["entries"])
    partial = path.with_suffix(".partial")
    partial.write_text(f'{json.dumps(head)[:-1]}, "entries": [\n{entries}\n]}}\n')
    os.replace(partial, path)


def clock_for(device: torch.device, *, quick: bool, budget: float) -> Clock:
    """Return a clock for the device's sizes that is over after `budget` seconds."""
    until = time.monotonic() + budget
    if device.type != "cuda":
        return Clock(device, 232_448, 1, quick, until)
    import torch
    from triton.runtime import driver

    shared = driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"]
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return Clock(device, shared, CACHE_TURNS * cache, quick, until)


def _shape_filter(text: str) -> Callable[[tuned.Shape], bool]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    return lambda shape: all(str(shape.get(name)) == value for name, _, value in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description=__doc__.split("\n\n")[1])
    parser.add_argument("--op", choices=OPS, action="append", help="by default all")
    parser.add_argument("--out", type=Path, default=tuned.FOLDER)
    parser.add_argument("--shapes", default="", help="only those of these values, as inner=4096,rank=16")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds")
    parser.add_argument("--quick", action="store_true", help="one small shape of each kind")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        if not arguments.quick:
            parser.error("--device cpu needs --quick: the interpreter is a test, not a measurement")
        os.environ["TRITON_INTERPRET"] = "1"  # read where Triton is first imported, which is below
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "no GPU here: nothing can be measured (--device cpu --quick tests the procedure)", file=sys.stderr
        )
        return 2
    clock = clock_for(torch.device(arguments.device), quick=arguments.quick, budget=arguments.budget)
    for op in arguments.op or OPS:
        tuning: Tuning = importlib.import_module(f"kernels.{op}.tuning").TUNING
        print(tune(tuning, clock, arguments.out, _shape_filter(arguments.shapes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
