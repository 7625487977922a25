"""One stream of uniform numbers per choice, addressed by position: SplitMix64 as a function of a counter.

Scheme. With G = 0x9E3779B97F4A7C15, all arithmetic modulo 2**64, and mix() SplitMix64's finalizer:
key = mix(mix(seed) + G * choice), and the number for completion token i (from 0) is the upper 53 bits of
mix(key + G * (i + 1)), divided by 2**53. Nothing but seed, choice and i enters: not the batch, not the
neighbours, not whether the sequence was set back and computed again.

Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014; constants of
Stafford's variant 13.
"""

from __future__ import annotations

from typing import Final

_GAMMA: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


def stream_key(seed: int, choice: int) -> int:
    """The key of one choice's stream; negative seeds count modulo 2**64."""
    return _mix(_mix(seed & _MASK) + _GAMMA * choice)


def uniform(key: int, index: int) -> float:
    """Number `index` of the stream, in [0, 1)."""
    return (_mix(key + _GAMMA * (index + 1)) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
