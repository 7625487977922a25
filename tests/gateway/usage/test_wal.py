"""The write-ahead log on a real disk: durable, torn, damaged, full, held by another."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.usage import wal
from gateway.usage.wal import Wal
from gateway.usage.wal_records import CLOSED, PROGRESS, Position, decode, encode, records, segment_path
from gateway.usage.wal_slots import Slot, abandoned, claim
from tests.waiting import eventually


def slot(folder: Path) -> Slot:
    held = Slot.hold(folder / "000")
    assert held is not None
    return held


def payload(number: int, **extra: object) -> bytes:
    return orjson.dumps({"event_id": f"e{number}", **extra})


def stored(folder: Path) -> list[tuple[bytes, bytes]]:
    return [record for path in sorted(folder.glob("000/*.wal")) for record in records(path)]


async def commit(log: Wal) -> None:
    await asyncio.wait_for(log.commit(), 5)


@given(st.sampled_from([PROGRESS, CLOSED]), st.binary().filter(lambda data: b"\n" not in data))
def test_records_round_trip(kind: bytes, data: bytes) -> None:
    line = encode(kind, data)
    assert line.endswith(b"\n")
    assert decode(line[:-1]) == (kind, data)


def test_any_flipped_byte_is_noticed() -> None:
    line = encode(CLOSED, payload(1))[:-1]
    for index in range(len(line)):
        damaged = bytearray(line)
        damaged[index] ^= 0x01
        assert decode(bytes(damaged)) is None, index


def test_a_commit_is_on_disk_when_it_resolves(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))

    async def work() -> None:
        for number in range(3):
            log.append(CLOSED, payload(number))
            await commit(log)
            assert stored(tmp_path)[-1] == (CLOSED, payload(number))

    asyncio.run(work())
    log.close()


def test_many_writers_share_commits_in_order(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path), segment_bytes=4096)

    async def write(number: int) -> None:
        for part in range(10):
            log.append(CLOSED, payload(number, part=part))
            await commit(log)

    async def work() -> None:
        await asyncio.gather(*(write(number) for number in range(20)))

    asyncio.run(work())
    log.close()
    seen = [orjson.loads(data) for _, data in stored(tmp_path)]
    assert len(seen) == 200
    for number in range(20):
        assert [item["part"] for item in seen if item["event_id"] == f"e{number}"] == list(range(10))
    assert log.segment > 1
    assert all(path.stat().st_size == 4096 for path in tmp_path.glob("000/*.wal"))


def test_open_streams_become_interrupted_events(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))
    log.append(PROGRESS, payload(1, completion_tokens=1))
    log.append(PROGRESS, payload(2, completion_tokens=1))
    log.append(PROGRESS, payload(1, completion_tokens=2))
    log.append(CLOSED, payload(2, completion_tokens=9))
    log.close()
    again = Wal(slot(tmp_path))
    assert again.recovered == 1
    again.close()
    assert stored(tmp_path)[-1] == (CLOSED, payload(1, completion_tokens=2))
    third = Wal(slot(tmp_path))
    assert third.recovered == 0, "a stream is recovered once"
    third.close()


@pytest.mark.parametrize("keep", range(0, 40, 3))
def test_a_torn_tail_costs_only_itself(tmp_path: Path, keep: int) -> None:
    log = Wal(slot(tmp_path))
    log.append(CLOSED, payload(1))
    log.close()
    line = encode(PROGRESS, payload(2))
    whole = len(encode(CLOSED, payload(1)))
    with segment_path(tmp_path / "000", 1).open("r+b") as segment:
        segment.seek(whole)
        segment.write(line[: min(keep, len(line) - 1)])
    again = Wal(slot(tmp_path))
    assert again.recovered == 0
    again.append(CLOSED, payload(3))
    again.close()
    assert stored(tmp_path) == [(CLOSED, payload(1)), (CLOSED, payload(3))]


def test_a_damaged_record_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Wal(slot(tmp_path))
    for number in range(3):
        log.append(CLOSED, payload(number))
    log.close()
    path = segment_path(tmp_path / "000", 1)
    data = bytearray(path.read_bytes())
    data[data.index(b"e1")] ^= 0x04
    path.write_bytes(data)
    again = Wal(slot(tmp_path))
    assert "damaged" in caplog.text
    again.close()
    assert [data for _, data in stored(tmp_path)] == [payload(0), payload(2)]


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond `size`, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_for_the_next_segment_new_work_is_refused(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path), segment_bytes=8192)

    async def work() -> None:
        with files_at_most(4096):
            log.append(CLOSED, payload(0, filler="x" * 3000))
            await commit(log)
            assert log.admits() == "", "half of the segment is still free"
            # Beyond the limit the write itself fails: it must be kept and tried again.
            log.append(CLOSED, payload(1, filler="x" * 3000))
            late = log.commit()
            async with asyncio.timeout(60):
                while "cannot be written" not in log.admits():  # noqa: ASYNC110 - a thread writes
                    await asyncio.sleep(0.01)
            assert not late.done()
        await asyncio.wait_for(late, 60)
        eventually(lambda: log.admits() == "")

    asyncio.run(work())
    log.close()
    assert [orjson.loads(data)["event_id"] for _, data in stored(tmp_path)] == ["e0", "e1"]


def test_preallocation_that_fails_refuses_before_anything_is_lost(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path), segment_bytes=8192)

    async def work() -> None:
        log.append(CLOSED, payload(0, filler="x" * 3000))
        await commit(log)
        with files_at_most(8000):
            log.append(CLOSED, payload(1, filler="x" * 3000))
            await commit(log)
            eventually(lambda: "no room" in log.admits())
            eventually(lambda: len(list(tmp_path.glob("000/*.wal"))) == 1)  # the failed one is removed
        log.flush()
        eventually(lambda: log.admits() == "")

    asyncio.run(work())
    log.close()
    assert len(stored(tmp_path)) == 2


@pytest.mark.parametrize(("delete", "left"), [(False, 1), (True, 0)])
def test_a_closed_log_keeps_its_segments_unless_told_to_delete_them(
    tmp_path: Path, delete: bool, left: int
) -> None:
    log = Wal(slot(tmp_path))

    async def work() -> None:
        log.append(CLOSED, payload(0))
        await commit(log)

    asyncio.run(work())
    log.close(delete=delete)
    assert len(stored(tmp_path)) == left


def test_a_slot_has_one_holder(tmp_path: Path) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    assert [first.folder.name, second.folder.name] == ["000", "001"]
    assert first.id != second.id
    first.release()
    again = claim(tmp_path)
    assert (again.folder.name, again.id) == ("000", first.id)
    again.release()
    second.release()


@pytest.mark.parametrize("damaged", ["", "0" * 31, "\0" * 32])
def test_a_damaged_id_is_made_anew(tmp_path: Path, damaged: str) -> None:
    first = slot(tmp_path)
    first.release()
    (tmp_path / "000" / "id").write_text(damaged)
    again = slot(tmp_path)
    again.release()
    assert len(again.id) == 32
    assert again.id not in (damaged, first.id)
    third = slot(tmp_path)
    assert third.id == again.id
    third.release()


def test_abandoned_slots_are_those_with_segments_and_no_holder(tmp_path: Path) -> None:
    held = Wal(claim(tmp_path))
    left = Wal(claim(tmp_path))
    left.close()
    empty = claim(tmp_path)
    empty.release()
    found = list(abandoned(tmp_path))
    assert [item.folder.name for item in found] == ["001"]
    for item in found:
        item.release()
    held.close()


def test_positions_compare_as_their_text() -> None:
    places = [Position(1, 9), Position(1, 10), Position(2, 0), Position(10, 1)]
    assert sorted(places) == places
    assert sorted(map(str, places)) == [str(place) for place in places]
    assert [Position.parse(str(place)) for place in places] == places
    assert wal.SEGMENT_BYTES < 10**16
