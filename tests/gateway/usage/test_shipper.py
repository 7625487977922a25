"""The shipper over a real Valkey server: each event once, whatever is interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from redis.asyncio import Redis

from contracts.redis_names import USAGE_STREAM
from gateway.usage.shipper import SHIP, SHIPPED_PREFIX, Shipper
from gateway.usage.wal import Wal
from gateway.usage.wal_records import CLOSED, PROGRESS, Position, segment_numbers, segment_path
from gateway.usage.wal_slots import Slot
from tests.gateway.usage.test_wal import files_at_most


def shipped(url: str) -> list[str]:
    with redis.Redis.from_url(url) as client:
        entries = client.xrange(USAGE_STREAM)
    assert isinstance(entries, list)
    return [orjson.loads(fields[b"event"])["event_id"] for _, fields in entries]


def a_wal(folder: Path, *, segment_bytes: int = 4096) -> Wal:
    slot = Slot.hold(folder)
    assert slot is not None
    return Wal(slot, segment_bytes=segment_bytes)


def write(log: Wal, numbers: range) -> list[str]:
    for number in numbers:
        log.append(PROGRESS, orjson.dumps({"event_id": f"e{number}", "status": "interrupted"}))
        log.append(CLOSED, orjson.dumps({"event_id": f"e{number}", "status": "ok", "filler": "x" * 100}))
    return [f"e{number}" for number in numbers]


async def drain(log: Wal, url: str) -> None:
    async with Redis.from_url(url) as client:
        await Shipper(log, client).drain()


def ingest(url: str, count: int) -> None:
    """Delete the oldest entries, as the ingester does after it wrote them to the database."""
    with redis.Redis.from_url(url) as client:
        ids = [entry_id for entry_id, _ in client.xrange(USAGE_STREAM, count=count)]
        client.xdel(USAGE_STREAM, *ids)


def test_closed_events_are_shipped_in_order(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path)
    names = write(log, range(100))
    asyncio.run(drain(log, redis_url))
    assert shipped(redis_url) == names
    log.close()


async def sizes_of_batches(log: Wal, url: str, count: int) -> list[int]:
    """Bytes of events in each call of the script, until so many events are shipped."""
    async with Redis.from_url(url) as client:
        shipper, sizes, whole = Shipper(log, client), list[int](), asyncio.Event()
        ship = shipper._ship

        async def counted(keys: list[str], args: list[Any]) -> Any:
            answer = await ship(keys=keys, args=args)
            sizes.append(sum(map(len, args[3:])))
            if shipper.num_shipped + len(args) - 3 >= count:
                whole.set()
            return answer

        shipper._ship = counted  # type: ignore[assignment]
        await log.commit()
        running = asyncio.ensure_future(shipper.run())
        await asyncio.wait_for(whole.wait(), 30)
        running.cancel()
    return sizes


def test_a_busy_moment_is_shipped_in_small_batches_and_a_backlog_in_large_ones(
    tmp_path: Path, redis_url: str
) -> None:
    log = a_wal(tmp_path, segment_bytes=1 << 20)
    names = write(log, range(400))
    busy = asyncio.run(sizes_of_batches(log, redis_url, len(names)))
    assert sum(busy) > 40_000
    assert max(busy) < 1 << 14
    names += write(log, range(400, 3400))
    behind = asyncio.run(sizes_of_batches(log, redis_url, len(names) - 400))
    assert max(behind) > 1 << 15
    assert shipped(redis_url) == names
    log.close()


def test_a_segment_stays_until_its_events_are_ingested(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path)
    write(log, range(100))

    async def work() -> None:
        async with Redis.from_url(redis_url) as client:
            shipper = Shipper(log, client)
            await shipper.drain()
            log.checkpoint = log.segment
            await shipper.drain()
            everything = segment_numbers(tmp_path)
            assert len(everything) > 3
            ingest(redis_url, 99)
            await shipper.drain()
            assert segment_numbers(tmp_path) == everything, "one is not in the database yet"
            assert not await shipper.ingested()
            ingest(redis_url, 1)
            await shipper.drain()
            assert segment_numbers(tmp_path) == [log.segment]
            assert await shipper.ingested()

    asyncio.run(work())
    log.close()


def test_a_full_disk_is_freed_although_nothing_can_be_written(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path)
    write(log, range(20))

    async def work() -> None:
        await log.commit()
        log.checkpoint = log.segment
        async with Redis.from_url(redis_url) as client:
            shipper = Shipper(log, client)
            with files_at_most(0):
                for _ in range(40):
                    await shipper._step()
                    ingest(redis_url, 20) if shipped(redis_url) else None

    asyncio.run(work())
    assert segment_numbers(tmp_path)[0] == log.segment
    log.close()


def test_a_restart_goes_on_where_it_stopped(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path)
    names = write(log, range(10))
    asyncio.run(drain(log, redis_url))
    names += write(log, range(10, 20))
    log.close()
    # The copy of the position on disk is older than what Redis remembers, as after a crash.
    (tmp_path / "position").unlink()
    again = a_wal(tmp_path)
    asyncio.run(drain(again, redis_url))
    asyncio.run(drain(again, redis_url))
    again.close()
    assert shipped(redis_url) == names


class LosesAnswers(Redis):
    """Redis whose first `losses` answers to a script are lost on the way back, the script having run."""

    losses = 1

    async def evalsha(self, *arguments: Any) -> Any:
        answer = await super().evalsha(*arguments)
        if self.losses:
            self.losses -= 1
            raise redis.exceptions.ConnectionError("the answer was lost")
        return answer


def test_a_batch_whose_answer_was_lost_is_not_shipped_twice(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path, segment_bytes=1 << 20)
    names = write(log, range(5))

    async def work() -> None:
        async with Redis.from_url(redis_url) as sound, LosesAnswers.from_url(redis_url) as client:
            await sound.script_load(SHIP)
            shipper = Shipper(log, client)
            with pytest.raises(redis.exceptions.ConnectionError):
                await shipper.drain()
            assert shipped(redis_url) == names
            await shipper.drain()

    asyncio.run(work())
    log.close()
    assert shipped(redis_url) == names


def test_two_shippers_of_one_slot_ship_each_event_once(tmp_path: Path, redis_url: str) -> None:
    # The script's own check: both read the same position before either ships.
    log = a_wal(tmp_path, segment_bytes=1 << 20)
    names = write(log, range(5))

    async def work() -> None:
        async with Redis.from_url(redis_url) as client:
            await asyncio.gather(*(Shipper(log, client).drain() for _ in range(4)))

    asyncio.run(work())
    log.close()
    assert shipped(redis_url) == names


def test_a_damaged_record_costs_only_itself(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path, segment_bytes=1 << 20)
    names = write(log, range(3))

    async def work() -> None:
        await log.commit()
        path = segment_path(tmp_path, log.segment)
        data = bytearray(path.read_bytes())
        at = data.index(b'"e1","status":"ok"')
        data[at + 1] ^= 0x04
        path.write_bytes(data)
        await drain(log, redis_url)

    asyncio.run(work())
    log.close()
    assert shipped(redis_url) == [names[0], names[2]]


def test_an_emptied_server_is_told_again_what_may_not_be_ingested(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path)
    names = write(log, range(50))
    asyncio.run(drain(log, redis_url))
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    names += write(log, range(50, 53))
    asyncio.run(drain(log, redis_url))
    log.close()
    assert shipped(redis_url) == names


@pytest.mark.parametrize("idle", [False, True])
def test_a_server_that_lost_its_last_seconds_unnoticed_is_told_them_again(
    tmp_path: Path, redis_url: str, idle: bool
) -> None:
    # The client connects again by itself, so no error tells the shipper that it speaks to another past.
    log = a_wal(tmp_path, segment_bytes=1 << 20)
    names = write(log, range(5))

    async def work() -> list[str]:
        async with Redis.from_url(redis_url) as client:
            running = asyncio.create_task(Shipper(log, client).run())
            await commit_and_wait(log, redis_url, names)
            position: Any = await client.get(SHIPPED_PREFIX + log.slot.id)
            later = names + write(log, range(5, 10))
            await commit_and_wait(log, redis_url, later)
            entries: Any = await client.xrange(USAGE_STREAM)
            lost = [entry_id for entry_id, _ in entries][5:]
            async with client.pipeline(transaction=True) as pipeline:
                pipeline.xdel(USAGE_STREAM, *lost)
                pipeline.set(SHIPPED_PREFIX + log.slot.id, position)
                await pipeline.execute()
            if not idle:
                later += write(log, range(10, 12))
            await commit_and_wait(log, redis_url, later)
            running.cancel()
            return later

    expected = asyncio.run(work())
    log.close()
    assert shipped(redis_url) == expected


async def commit_and_wait(log: Wal, url: str, names: list[str]) -> None:
    await log.commit()
    async with asyncio.timeout(20):
        for _ in range(10_000):
            if len(shipped(url)) >= len(names):
                return
            await asyncio.sleep(0.05)


def test_the_position_of_a_dead_slot_does_not_stay_for_ever(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path)
    write(log, range(1))
    asyncio.run(drain(log, redis_url))
    with redis.Redis.from_url(redis_url) as client:
        left = client.ttl(SHIPPED_PREFIX + log.slot.id)
    assert isinstance(left, int)
    assert left > 30 * 86_400
    log.close()


def test_a_log_emptied_by_hand_goes_on_behind_what_is_shipped(tmp_path: Path, redis_url: str) -> None:
    log = a_wal(tmp_path)
    names = write(log, range(50))
    asyncio.run(drain(log, redis_url))
    log.close()
    for path in tmp_path.glob("*.wal"):
        path.unlink()
    again = a_wal(tmp_path)
    assert again.segment == log.segment + 1
    names += write(again, range(50, 55))
    asyncio.run(drain(again, redis_url))
    again.close()
    assert shipped(redis_url) == names


def test_a_position_beyond_the_log_is_an_error_and_costs_nothing(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = a_wal(tmp_path)
    asyncio.run(drain(log, redis_url))
    assert not caplog.messages
    log.close()
    asyncio.run(_claim_shipped(log, redis_url))
    for path in [*tmp_path.glob("*.wal"), tmp_path / "position"]:
        path.unlink()
    again = a_wal(tmp_path)
    names = write(again, range(1))
    asyncio.run(drain(again, redis_url))
    again.close()
    assert "emptied or replaced by hand" in caplog.text
    assert shipped(redis_url) == names, "what came after is not taken for shipped"


async def _claim_shipped(log: Wal, url: str) -> None:
    async with Redis.from_url(url) as client:
        await client.set(SHIPPED_PREFIX + log.slot.id, str(Position(57, 0)))
