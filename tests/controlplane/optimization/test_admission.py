"""Memory and GPUs that a host has for optimization."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.optimization import admission


@pytest.mark.parametrize(
    ("most", "now", "prefix"),
    [("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")],
)
def test_a_containers_limit_is_heeded_and_files_that_it_has_read_are_no_use(
    most: str, now: str, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(admission, "_CGROUPS", ((tmp_path, most, now), (tmp_path / "other", most, now)))
    (tmp_path / most).write_text("1000\n")
    (tmp_path / now).write_text("900\n")
    # cgroup version 1 reports its own part next to the total.
    stat = f"anon 200\nactive_file 1\n{prefix}active_file 300\n{prefix}inactive_file 400\n"
    (tmp_path / "memory.stat").write_text(stat)
    assert admission._memory() == (800, 1000)
    (tmp_path / most).write_text("max\n")
    whole = admission._memory()
    assert whole is not None
    assert whole[1] > 1 << 30


@pytest.mark.django_db
def test_gpus_are_chosen_by_kind_memory_and_who_is_on_them(
    monkeypatch: pytest.MonkeyPatch, optimization_dir: Path
) -> None:
    text = "0, 1000, 81920, 9.0\n1, 80000, 81920, 9.0\n2, 80000, 81920, 9.0\n3, 24000, 24564, 8.6\n"
    text += "4, [N/A], [N/A], 12.1\n"
    found = list(admission._gpu_lines(text))
    monkeypatch.setattr(admission, "gpus", lambda: found)
    needs = admission.Needs("gpu", 1, 40 << 30, capability=90)
    seats = [admission.seat_take(needs) for _ in range(2)]
    assert [seat.environment for seat in seats] == [
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"},
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2"},
    ]
    with pytest.raises(admission.NoRoomYetError, match="other jobs use the rest"):
        admission.seat_take(needs)
    seats[0].close()
    assert admission.seat_take(needs).environment["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(admission.NoRoomYetError, match=r"this host's 4 have 8\.6, 9\.0"):
        admission.seat_take(admission.Needs("gpu", 1, 1 << 30, capability=89))
    with pytest.raises(admission.NeverFitsError, match=r"200\.0 GiB on each of 1 GPUs, and they have 80\.0"):
        admission._gpus_take(admission.Needs("gpu", 1, 200 << 30), found)
    monkeypatch.setattr(admission, "gpus", list)
    with pytest.raises(admission.NoRoomYetError, match="nvidia-smi reports no GPU"):
        admission.seat_take(needs)
