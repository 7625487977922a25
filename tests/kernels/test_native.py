"""The native CPU kernels against float64, at odd sizes and strides, with NaN wherever nothing may be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import native
from kernels.attention import AttentionPlan, cpu, native_attention
from kernels.attention.reference import attend as attend_reference
from kernels.native import build
from kernels.rotary import rotate_

pytestmark = pytest.mark.costly("compiles the library")

needed = pytest.mark.usefixtures("loops")
ROUNDING = 2**-8
"""Half a unit in bf16's last place, relative: everything before the last rounding is float32."""


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).bfloat16()


def assert_rounded(found: torch.Tensor, wanted: torch.Tensor, slack: float = 1e-5) -> None:
    """Equal but for the last rounding, and what float32 loses in sums of terms about 1."""
    assert ((found.double() - wanted).abs() <= ROUNDING * wanted.abs() + slack).all()


@needed
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 15, 33])
@pytest.mark.parametrize(("columns", "inner"), [(16, 2), (17, 34), (576, 576), (100, 1536), (3072, 66)])
@pytest.mark.parametrize("extras", [False, True])
def test_linear(rows: int, columns: int, inner: int, extras: bool) -> None:
    weight = draw(columns, inner, seed=1) * inner**-0.5
    x = draw(rows, inner + 3)[:, :inner]
    bias, residual = (draw(columns, seed=2), draw(rows, columns, seed=3)) if extras else (None, None)
    wanted = x.double() @ weight.double().T
    if bias is not None and residual is not None:
        wanted = wanted + bias.double() + residual.double()
    packed = native.pack(weight)
    assert torch.equal(native.unpack(packed, columns), weight)
    assert_rounded(native.linear(x, packed, columns, bias, residual), wanted)


@needed
def test_a_row_of_a_product_does_not_depend_on_the_others() -> None:
    """Bit for bit: the tokens of a sequence must not depend on the other sequences of the batch."""
    x, packed = draw(33, 576), native.pack(draw(960, 576, seed=1))
    together = native.linear(x, packed, 960, None, None)
    alone = torch.cat([native.linear(x[i : i + 1], packed, 960, None, None) for i in range(33)])
    assert torch.equal(together, alone)


@needed
@pytest.mark.parametrize("shape", [(1, 576), (5, 1000), (3, 12, 64), (2, 5, 20)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x = draw(shape[0], *shape[1:-1], shape[-1])
    wide = torch.full((shape[0], x[0].numel() + 5), float("nan")).bfloat16()
    wide[:, : x[0].numel()] = x.flatten(1)
    strided = (
        wide[:, : x[0].numel()].view(shape)
        if len(shape) == 2
        else wide.as_strided(shape, (wide.stride(0), shape[-1], 1))
    )
    weight = draw(*shape[1:], seed=4).float()
    wanted = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = torch.full(shape, float("nan")).bfloat16()
    assert_rounded(native.rms_norm(strided, weight, 1e-5, out), wanted)
    native.rms_norm(strided, weight, 1e-5, strided)
    assert torch.equal(strided, out)
    assert wide[:, x[0].numel() :].isnan().all()


@needed
@pytest.mark.parametrize(("head_dim", "turned"), [(64, 64), (128, 128), (20, 20), (64, 48), (6, 2)])
def test_rotate(head_dim: int, turned: int) -> None:
    rows, heads = 3, 5
    full = draw(rows, heads + 2, head_dim)
    x = full[:, :heads]
    angle = torch.rand(rows, 1, turned // 2) * 6
    cos = torch.cat((angle.cos(), angle.cos()), -1).bfloat16()
    sin = torch.cat((-angle.sin(), angle.sin()), -1).bfloat16()
    before = full.clone()
    first, second = before[:, :heads, :turned].double().chunk(2, -1)
    wanted = torch.cat((first, second), -1) * cos.double() + torch.cat((second, first), -1) * sin.double()
    native.rotate_(x, cos, sin)
    assert_rounded(x[..., :turned], wanted)
    assert torch.equal(full[:, :heads, turned:], before[:, :heads, turned:])
    assert torch.equal(full[:, heads:], before[:, heads:])


@needed
@pytest.mark.parametrize(("rows", "inner"), [(1, 16), (3, 1536), (5, 37)])
def test_silu_gated(rows: int, inner: int) -> None:
    gate_up = draw(rows, 2 * inner) * 4
    gate_up[0, :4] = torch.tensor([90.0, -90.0, -300.0, 0.0])
    gate, up = gate_up.double().chunk(2, -1)
    out = native.silu_gated(gate_up, torch.empty(rows, inner, dtype=torch.bfloat16))
    assert_rounded(out, torch.nn.functional.silu(gate) * up, slack=1e-6)
    gate_up[0, 1] = float("nan")
    assert native.silu_gated(gate_up, out)[0, 1].isnan()


@needed
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("sinks", [False, True])
def test_attend(head_dim: int, sinks: bool) -> None:
    heads, kv_heads, page_size = 6, 2, 16
    contexts = [1, 17, 130, 64]
    pages = [[9, 8], [3, 4], list(range(10, 20)), [20, 22, 21, 23, 5]]
    plan = AttentionPlan.build([1] * 4, contexts, pages, page_size=page_size)
    held = draw(2, kv_heads, 24, page_size, head_dim, seed=1)
    slots = [[p[at // 16] * 16 + at % 16 for at in range(n)] for p, n in zip(pages, contexts, strict=True)]
    free = torch.ones(24 * 16, dtype=torch.bool)
    free[[slot for row in slots for slot in row]] = False
    kv = held.clone()
    kv.view(2, kv_heads, -1, head_dim)[:, :, free] = float("nan")
    q = draw(4, heads + 3, head_dim, seed=2)[:, :heads]
    logits = torch.randn(heads) if sinks else None
    found = native_attention.attend(q, kv, plan, scale=0.125, window=0, sinks=logits)
    wanted = attend_reference(
        q.double(), held.double(), plan, scale=0.125, sinks=None if logits is None else logits.double()
    )
    assert_rounded(found, wanted)
    assert native_attention.fits(q)


@needed
@pytest.mark.parametrize(("window", "head_dim", "sinks"), [(0, 64, False), (1, 96, True), (70, 256, False)])
def test_a_prompt_attends_alike_however_it_is_cut(window: int, head_dim: int, sinks: bool) -> None:
    """As specified, and bit for bit the same in one chunk as in several; nothing behind a chunk is read."""
    heads, kv_heads, context = 6, 2, 200
    pages = torch.randperm(20, generator=torch.Generator().manual_seed(5)).tolist()
    held, q = draw(2, kv_heads, 20, 16, head_dim, seed=1), draw(context, heads, head_dim, seed=2)
    logits = torch.randn(heads) if sinks else None
    parts = []
    for start, end in ((0, 2), (2, 65), (65, 130), (130, 193), (193, 200)):
        kv = held.clone()
        behind = [pages[at // 16] * 16 + at % 16 for at in range(end, 320)]
        kv.view(2, kv_heads, -1, head_dim)[:, :, behind] = float("nan")
        plan = AttentionPlan.build([end - start], [end], [pages], page_size=16)
        parts.append(
            native_attention.attend(q[start:end], kv, plan, scale=0.125, window=window, sinks=logits)
        )
    plan = AttentionPlan.build([context], [context], [pages], page_size=16)
    whole = native_attention.attend(q, held, plan, scale=0.125, window=window, sinks=logits)
    assert torch.equal(torch.cat(parts), whole)
    wanted = attend_reference(
        q.double(),
        held.double(),
        plan,
        scale=0.125,
        window=window,
        sinks=None if logits is None else logits.double(),
    )
    assert_rounded(whole, wanted)


@needed
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("chunks", [[5], [1, 40], [3, 1, 2]])
def test_who_decodes_beside_a_prefill_attends_as_without(chunks: list[int], window: int) -> None:
    """Bit for bit, and all rows as specified."""
    queries, contexts = [1, 1, 1, *chunks], [1, 33, 100, *(length + 30 for length in chunks)]
    counts = [-(-context // 16) for context in contexts]
    order = torch.split(torch.randperm(sum(counts)), counts)
    plan = AttentionPlan.build(queries, contexts, [pages.tolist() for pages in order], page_size=16)
    alone = AttentionPlan.build(queries[:3], contexts[:3], plan.pages[:3], page_size=16)
    kv, q = draw(2, 2, sum(counts), 16, 64, seed=1), draw(sum(queries), 6, 64, seed=2)
    found = cpu.attend(q, kv, plan, scale=0.125, window=window)
    assert torch.equal(found[:3], cpu.attend(q[:3], kv, alone, scale=0.125, window=window))
    wanted = attend_reference(q.double(), kv.double(), plan, scale=0.125, window=window)
    assert (found.double() - wanted).abs().max() <= 0.02


@needed
@pytest.mark.parametrize("window", [0, 1, 15, 40])
@pytest.mark.parametrize("queries", [[1, 1, 1], [1, 30, 1], [1, 1, 90]])
def test_rotate_store_attend_is_the_three_one_by_one(window: int, queries: list[int]) -> None:
    heads, kv_heads, head_dim, contexts = 6, 2, 64, [1, 33, 100]
    plan = AttentionPlan.build(queries, contexts, [[7], [3, 1, 2], list(range(10, 17))], page_size=16)
    kv = draw(2, kv_heads, 20, 16, head_dim, seed=1)
    qkv = draw(sum(queries), heads + 2 * kv_heads, head_dim, seed=2)
    angle = torch.rand(sum(queries), 1, head_dim // 2)
    angles = (torch.cat((angle, angle), -1).cos().bfloat16(), torch.cat((-angle, angle), -1).sin().bfloat16())
    pages, rows = kv.clone(), qkv.clone()
    rotate_(rows[:, : heads + kv_heads], *angles)
    pages.view(2 * kv_heads, -1, head_dim).index_copy_(1, plan.slots, rows[:, heads:].transpose(0, 1))
    wanted = attend_reference(rows[:, :heads].double(), pages.double(), plan, scale=0.2, window=window)
    found = native_attention.rotate_store_attend(qkv, angles, kv, plan, scale=0.2, window=window)
    assert torch.equal(kv, pages)
    assert_rounded(found, wanted.flatten(1))


def run(code: str, **environment: str) -> str:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=root,
        env={"PATH": "", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_a_compiler_there_is_no_library(tmp_path: Path) -> None:
    code = "from kernels import native; print(native.LIBRARY)"
    assert run(code, GRAFTWORK_WORKER_CACHE_DIR=str(tmp_path)) == "None"
    assert run(code, GRAFTWORK_WORKER_CACHE_DIR=str(tmp_path), CXX="/bin/false") == "None"
    assert run(code, GRAFTWORK_WORKER_NATIVE="0") == "None"
    assert not list((tmp_path / "native").glob("*.so"))


@pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
def test_a_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFTWORK_WORKER_CACHE_DIR", str(tmp_path))
    slowest = build.supported()[-1]
    assert build.load(slowest) is not None
    (library,) = (tmp_path / "native").iterdir()
    stamp = library.stat().st_mtime_ns
    assert build.load(slowest) is not None
    assert library.stat().st_mtime_ns == stamp


def compiler(folder: Path, version: str) -> Path:
    """A program that says that it is a compiler, and writes its version where a library is wanted."""
    folder.mkdir(exist_ok=True)
    path = folder / "c++"
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi\n'
        f'while [ "$1" != -o ]; do shift; done\necho "{version}" > "$2"\n'
    )
    path.chmod(0o755)
    build.compiler_identity.cache_clear()
    return path


def test_a_library_is_of_one_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another path, version, source or set of flags gets another file, which the same ones find again."""
    cache, made = tmp_path / "cache", set[Path]()
    for place, version in (("a", "c++ 12.2"), ("a", "c++ 13.1"), ("b", "c++ 13.1")):
        monkeypatch.setenv("CXX", str(compiler(tmp_path / place, version)))
        for name in ("avx2", "avx512"):
            library = build.library(cache, name)
            assert library.read_text().strip() == version
            assert build.library(cache, name) == library
            made.add(library)
    assert len(made) == 6
    source = tmp_path / "kernels.cpp"
    source.write_text("other")
    monkeypatch.setattr(build, "SOURCE", source)
    assert build.library(cache, "avx2") not in made


def test_without_a_compiler_what_came_along_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "a", "c++ 12.2")))
    library = build.library(tmp_path, "avx2")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert build.library(tmp_path, "avx2") == library
    with pytest.raises(RuntimeError, match="there is no C"):
        build.library(tmp_path, "avx512")


@pytest.mark.parametrize("fault", [OSError("read-only file system"), RuntimeError("c++ failed")])
def test_what_came_along_is_taken_where_nothing_can_be_compiled(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's compiler over an image's read-only folder; and a `CXX` of several words."""
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "a", "c++ 12.2")))
    library = build.library(tmp_path, "avx2")

    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(build, "_compile", fail)
    for other in (str(compiler(tmp_path / "b", "c++ 13.1")), "ccache g++"):
        monkeypatch.setenv("CXX", other)
        assert build.library(tmp_path, "avx2") == library
        with pytest.raises((OSError, RuntimeError)):
            build.library(tmp_path, "avx512")


@pytest.mark.parametrize("body", ["exit 1", "exit 0"])
def test_what_does_not_say_what_it_is_compiles_nothing(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "c++"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    build.compiler_identity.cache_clear()
    monkeypatch.setenv("CXX", str(program))
    with pytest.raises(RuntimeError, match="--version failed"):
        build.library(tmp_path / "cache", "avx2")
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(
    ("lacking", "taken"),
    [
        ((), "avx512_bf16"),
        (("avx512_bf16",), "avx512"),
        (("avx512_f",), "avx2"),
        (("avx512_vl",), "avx2"),
        (("avx512_f", "f16c"), None),
        (("avx2", "avx512_f"), None),
        (("fma3",), None),
    ],
)
def test_the_fastest_instructions_that_there_are(
    lacking: tuple[str, ...], taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ("avx2", "f16c", "fma3", "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl", "avx512_bf16")
    capabilities = {name: name not in lacking for name in every}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.delenv("GRAFTWORK_WORKER_NATIVE", raising=False)
    assert build.instruction_set() == taken
    monkeypatch.setenv("GRAFTWORK_WORKER_NATIVE", "0")
    assert build.instruction_set() is None
    monkeypatch.setenv("GRAFTWORK_WORKER_NATIVE", "avx2")
    if taken is not None:
        assert build.instruction_set() == "avx2"
        monkeypatch.setenv("GRAFTWORK_WORKER_NATIVE", "avx")
    with pytest.raises(ValueError, match=r"GRAFTWORK_WORKER_NATIVE=avx2?: leave it out"):
        build.instruction_set()


def test_a_cpu_of_another_kind_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "aarch64", "neon": True})
    assert build.supported() == ()


def test_avx2_gives_the_bits_of_avx512(take_loops: Callable[[str], None]) -> None:
    """Without BF16 products on either host, a sequence's tokens do not change when it moves."""
    x, packed = draw(33, 576), native.pack(draw(963, 576, seed=1))
    plan = AttentionPlan.build(
        [1, 40, 1], [1, 100, 130], [[0], [*range(1, 8)], [*range(8, 17)]], page_size=16
    )
    kv, q = draw(2, 2, 17, 16, 96, seed=1), draw(42, 6, 96, seed=2)
    found = []
    for form in ("avx512", "avx2"):
        take_loops(form)
        gated = native.silu_gated(x * 4, torch.empty(33, 288, dtype=torch.bfloat16))
        attended = native_attention.attend(q, kv, plan, scale=0.125, window=0, sinks=None)
        found.append((native.linear(x, packed, 963, None, None), gated, attended))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
