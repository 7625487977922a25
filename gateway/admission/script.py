"""The Lua script by which gateway processes draw leases on limits, with its arguments and answers.

Everything is counted in one place, in Redis' own time. A process calls the script with a batch of operations,
one per limit; each reports what the process holds or gives back, and requests more.

Keys: first `GATEWAYS`, `EPOCH`, `SLOTS`, then one per operation. Arguments: the caller's name, the log
slot that the name belongs to, the epoch that the caller knows, then the operations' fields in turn.
Answer: `[epoch, milliseconds of quarantine left, gateways alive, now in ms]`, then one list an operation;
operations of a caller whose epoch is not Redis' own are not run.

Operations (all amounts are integers):

    w limit width first all want n (slice amount)*n   -> granted, slice, ms left, free, ms to wait
    c limit used keep waiting want                    -> held, free
    b limit spent hold first all want                 -> granted, free, spent by all; or -1 without a base

`w`: requests or tokens in a sliding window of SLICES slices of `width` ms. A grant is charged to a slice and
may be spent until that slice ends; it stops counting after SLICES more slices. The pairs give charges back
(or, negative, add them). The grant is between `first` and `all`, or nothing if `first` is not free; `want`
asks for more while others keep half. A window of SLICES slices touches SLICES + 1 of them. No grant lets
their sum exceed the limit, so no span of the window's length does.

`c`: the caller has `used` places in use and holds `keep` more, which it may use before the answer. It also
states how many more it wants; this replaces its earlier report. `keep` is cut only where others hold places
that this caller counted as its own: it was taken for dead, or the limit was lowered.

`b`: `spent` is added to the account, `hold` replaces the caller's earlier hold. The database's baseline
(`base`, `cut`, written by the control plane) includes older spending, which is dropped here.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "graftwork:admission:"
GATEWAYS: Final = PREFIX + "gateways"
"""Sorted set: gateway processes by the time (ms) of their last call."""
EPOCH: Final = PREFIX + "epoch"
"""Hash: `id` of the data's current epoch, `until` (ms) the end of its quarantine."""
SLOTS: Final = PREFIX + "slots"
"""Hash: usage log slot -> gateway process that has it: a new process means that the old one is dead."""

SLICES: Final = 60
GATEWAY_TTL_MS: Final = 10_000
"""A process without a call for this long is dead: its places and budget leases go to others."""
QUARANTINE_MS: Final = 3_000
"""After Redis lost its data nothing is granted for this long, while live processes report their usage."""
BUDGET_SLICE_MS: Final = 10_000

LEASE: Final = (
    f"local SLICES, TTL, QUARANTINE, BUDGET_SLICE ="
    f" {SLICES}, {GATEWAY_TTL_MS}, {QUARANTINE_MS}, {BUDGET_SLICE_MS}\n"
    + """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local me, slot, epoch = ARGV[1], ARGV[2], ARGV[3]
local at = 3

local function take()
  at = at + 1
  return tonumber(ARGV[at])
end

local function text(number)
  return string.format('%.0f', number)
end

local function greet()
  local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if newest[2] and now - tonumber(newest[2]) > TTL / 3 then
    -- Nobody called for a while: it was Redis that was away. Everyone has TTL to come back.
    for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
      redis.call('ZADD', KEYS[1], now, name)
    end
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - TTL)
  local before = redis.call('HGET', KEYS[3], slot)
  if before ~= me then
    if before then redis.call('ZREM', KEYS[1], before) end
    redis.call('HSET', KEYS[3], slot, me)
  end
  redis.call('ZADD', KEYS[1], now, me)
  return redis.call('ZCARD', KEYS[1])
end

local gateways = greet()
local mine = redis.call('HGET', KEYS[2], 'id')
if not mine then
  mine = me .. ':' .. text(now)
  redis.call('HSET', KEYS[2], 'id', mine, 'until', text(now + QUARANTINE))
end
local quarantine = math.max(0, tonumber(redis.call('HGET', KEYS[2], 'until')) - now)
local answer = {{mine, quarantine, gateways, now}}
if epoch ~= mine then return answer end

-- What is granted beyond what is asked for: at most half of what is left, shared by all.
local function extra(want, free)
  return math.min(want, math.floor(free / (2 * gateways)))
end

-- Drops slices below `live` from the hash at `key`, whose total is field `t` and oldest slice `o`.
local function expire(key, live)
  local state = redis.call('HMGET', key, 't', 'o')
  local total, oldest = tonumber(state[1] or '0'), tonumber(state[2] or text(live))
  if live - oldest > 2 * SLICES then
    for _, field in ipairs(redis.call('HKEYS', key)) do
      local slice = tonumber(field)
      if slice and slice < live then
        total = total - tonumber(redis.call('HGET', key, field))
        redis.call('HDEL', key, field)
      end
    end
  else
    for slice = oldest, live - 1 do
      local amount = redis.call('HGET', key, text(slice))
      if amount then
        total = total - tonumber(amount)
        redis.call('HDEL', key, text(slice))
      end
    end
  end
  return total, math.max(oldest, live)
end

-- Milliseconds until `missing` more have left the window.
local function wait_for(key, missing, oldest, newest, width)
  for slice = oldest, newest do
    missing = missing - tonumber(redis.call('HGET', key, text(slice)) or '0')
    if missing <= 0 then return (slice + SLICES + 1) * width - now end
  end
  return (newest + SLICES + 1) * width - now
end

local function window(key)
  local limit, width, first, all, want = take(), take(), take(), take(), take()
  local present = math.floor(now / width)
  local total, oldest = expire(key, present - SLICES)
  for _ = 1, take() do
    local slice, amount = take(), take()
    if slice >= present - SLICES then
      local before = tonumber(redis.call('HGET', key, text(slice)) or '0')
      local after = math.max(0, before - amount)
      if after ~= before then redis.call('HSET', key, text(slice), text(after)) end
      total = total + after - before
      oldest = math.min(oldest, slice)
    end
  end
  local slice, left = present, (present + 1) * width - now
  if left < width / 4 then slice, left = present + 1, left + width end
  local granted, wait, free = 0, 0, limit - total
  if quarantine > 0 then
    wait, free = quarantine, 0
  elseif first > 0 then
    if free >= first then
      granted = math.min(all, free)
      granted = granted + extra(want, free - granted)
    else
      wait = wait_for(key, first - free, oldest, present + 1, width)
    end
  end
  if granted > 0 then
    redis.call('HINCRBY', key, text(slice), text(granted))
    total, free = total + granted, free - granted
  end
  redis.call('HSET', key, 't', text(total), 'o', text(oldest))
  redis.call('PEXPIRE', key, text((SLICES + 3) * width))
  return {granted, slice, math.floor(left), free, math.ceil(wait)}
end

local function concurrency(key)
  local limit, used, keep, waiting, want = take(), take(), take(), take(), take()
  local others = 0
  local fields = redis.call('HGETALL', key)
  for index = 1, #fields, 2 do
    if fields[index] ~= me then
      if redis.call('ZSCORE', KEYS[1], fields[index]) then
        others = others + tonumber(fields[index + 1])
      else
        redis.call('HDEL', key, fields[index])
      end
    end
  end
  local held = math.max(used, math.min(used + keep, limit - others))
  if quarantine == 0 then
    held = math.max(held, math.min(used + keep + waiting, limit - others))
    held = held + extra(want, math.max(0, limit - others - held))
  end
  if held > 0 then
    redis.call('HSET', key, me, text(held))
    redis.call('PEXPIRE', key, '3600000')
  else
    redis.call('HDEL', key, me)
  end
  return {held, limit - others - held}
end

local function budget(key)
  local limit, spent, hold, first, all, want = take(), take(), take(), take(), take(), take()
  local present = math.floor(now / BUDGET_SLICE)
  local state = redis.call('HMGET', key, 'base', 'cut')
  local total, oldest = expire(key, math.floor(tonumber(state[2] or '0') / BUDGET_SLICE))
  local others = 0
  local fields = redis.call('HGETALL', key)
  for index = 1, #fields, 2 do
    local owner = string.match(fields[index], '^@(.*)')
    if owner and owner ~= me then
      local amount = tonumber(fields[index + 1])
      if redis.call('ZSCORE', KEYS[1], owner) then
        others = others + amount
      else
        -- What a dead process held may be spent: the database will know.
        spent = spent + amount
        redis.call('HDEL', key, fields[index])
      end
    end
  end
  if spent ~= 0 then
    redis.call('HINCRBY', key, text(present), text(spent))
    total = total + spent
  end
  redis.call('HSET', key, 't', text(total), 'o', text(math.min(oldest, present)), '@' .. me, text(hold))
  redis.call('PEXPIRE', key, '5616000000')
  if not state[1] or quarantine > 0 then return {-1, 0, 0} end
  local gone = tonumber(state[1]) + total
  local free = limit - gone - others - hold
  local granted = 0
  if first > 0 and free >= first then
    granted = math.min(all, free)
    granted = granted + extra(want, free - granted)
    redis.call('HSET', key, '@' .. me, text(hold + granted))
  end
  return {granted, free - granted, gone}
end

local operations = {w = window, c = concurrency, b = budget}
for index = 4, #KEYS do
  at = at + 1
  answer[#answer + 1] = operations[ARGV[at]](KEYS[index])
end
return answer
"""
)
