"""`python -m kernels.ahead_of_time [--capability N] [--in-turn] [--out DIR]`: compiles kernels without a GPU.

Prints one JSON line per kernel and architecture: registers and spilled bytes per thread, shared memory, and
whether weights are loaded 16 bytes at a time. `--out` also writes DIR/compiled.json. A kernel that does not
compile ends the run with its name. Ops provide a `variants.py` in their folder, with a function `variants`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.variant import Variant

CAPABILITIES: Final = (80, 90, 100)
TOOLS: Final = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiler's result for a variant; sizes in bytes, registers per thread."""

    name: str
    capability: int
    registers: int
    spilled: int
    """Stack bytes per thread: registers spill there, to device memory."""
    shared: int
    wide_loads: int
    """Global loads of 16 bytes, by plain load or asynchronous copy."""
    dependent_launch: bool
    """True if it holds an instruction of programmatic dependent launch."""


def variants() -> Iterator[Variant]:
    """Yield every kernel of every op."""
    for file in sorted(Path(__file__).parent.glob("*/variants.py")):
        yield from importlib.import_module(f"kernels.{file.parent.name}.variants").variants()


def compile_variant(variant: Variant, capability: int) -> Compiled:
    """Compile a variant to machine code.

    Raises:
        triton.compiler.errors.CompilationError: the kernel does not compile.
        triton.runtime.errors.PTXASError: the assembler refuses it.
    """
    kernel = variant.kernel
    names = kernel.arg_names
    constants = dict(variant.constants)
    if variant.pdl_from is not None:
        constants["PDL"] = capability >= variant.pdl_from
    source = ASTSource(
        fn=kernel,
        signature={name: variant.types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx: str = compiled.asm["ptx"]
    registers, spilled = _resources(compiled.asm["cubin"])
    wide = len(re.findall(r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64|cp\.async\.cg", ptx))
    return Compiled(
        variant.name, capability, registers, spilled, _shared(compiled), wide, "griddepcontrol" in ptx
    )


def _shared(compiled: Any) -> int:
    return int(compiled.metadata.shared)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Return (registers, stack bytes) per thread, read from the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if found is None:
        raise ValueError(f"cuobjdump's report has no register count: {done.stdout!r}")
    return int(found[1]), int(found[2])


def each(only: str, capabilities: Sequence[int], *, in_turn: bool) -> list[tuple[str, int]]:
    """Return (variant name, capability) pairs to compile: all of `capabilities`, or one per variant in
    rotation.
    """
    found = [one for one in variants() if only in one.name]
    if not in_turn:
        return [(one.name, each) for one in found for each in capabilities if each >= one.least]
    jobs = []
    for n, one in enumerate(found):
        # Kernels come in threes, so shift the rotation by one after every three.
        turn = capabilities[(n + n // 3) % len(capabilities)]
        jobs.append((one.name, turn if turn >= one.least else max(capabilities)))
    return jobs


def compile_all(jobs: Sequence[tuple[str, int]]) -> Iterator[Compiled]:
    """Compile variants, on all processors that this process may use."""
    # Fork, so that the workers have Triton and the kernels loaded. This process has no threads yet.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        yield from pool.map(_compile, *zip(*jobs, strict=True))


def _compile(name: str, capability: int) -> Compiled:
    (variant,) = (one for one in variants() if one.name == name)
    try:
        return compile_variant(variant, capability)
    except Exception as error:
        # The compiler's own errors cannot be pickled between processes.
        raise RuntimeError(f"{name} for sm_{capability}: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.ahead_of_time", description=__doc__)
    parser.add_argument("--capability", type=int, action="append", choices=CAPABILITIES)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--in-turn", action="store_true", help="each kernel for one architecture only")
    parser.add_argument("--out", type=Path, help="folder for compiled.json")
    arguments = parser.parse_args()
    lines: list[str] = []
    jobs = each(arguments.only, arguments.capability or CAPABILITIES, in_turn=arguments.in_turn)
    for compiled in compile_all(jobs):
        lines.append(json.dumps(asdict(compiled)))
        print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        text = f'{{"triton": "{triton.__version__}", "kernels": [\n' + ",\n".join(lines) + "\n]}\n"
        (arguments.out / "compiled.json").write_text(text)


if __name__ == "__main__":
    main()
