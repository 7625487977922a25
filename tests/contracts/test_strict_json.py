"""Values that neither JSON nor jsonb of PostgreSQL can hold are named with their place."""

from __future__ import annotations

import pytest

from contracts.strict_json import loads

FAULTS = {
    "NaN": "holds NaN",
    "-Infinity": "an infinite number",
    "1e999": "an infinite number",
    r'"a\u0000"': "a NUL character",
    r'"\ud800"': "half of a surrogate pair",
}


@pytest.mark.parametrize("place", ["%s", "[[%s]]", '{"a": {"b": [1, %s]}}'])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_wherever_it_stands(place: str, fault: str) -> None:
    with pytest.raises(ValueError, match=FAULTS[fault]):
        loads(place % fault)


@pytest.mark.parametrize("text", [r'{"\u0000": 1}', r'{"\ud800": 1}'])
def test_names_are_judged_too(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be stored|not valid Unicode"):
        loads(text)


def test_depth_is_bounded() -> None:
    assert loads("[" * 101 + "]" * 101)
    with pytest.raises(ValueError, match="more than 100 values within one another"):
        loads("[" * 102 + "]" * 102)


def test_the_place_is_told() -> None:
    with pytest.raises(ValueError, match=r"^it holds NaN at a\.b\.1, which is not a JSON number$"):
        loads('{"a": {"b": [1, NaN], "c": 2}}')


@pytest.mark.parametrize("data", ["{", "[" * 100_000, b"\xff\xfe\xfd", "9" * 5000])
def test_what_is_no_json_is_a_value_error(data: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(data)


def test_what_json_holds_is_given() -> None:
    text = r'{"a": [1, -2.5e300, "é\ud83d\ude00", null, true], "": {}}'
    assert loads(text) == loads(text.encode()) == {"a": [1, -2.5e300, "é😀", None, True], "": {}}
