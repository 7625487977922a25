"""RE2 matches what `re` matches; an unsupported pattern and an invalid one get different errors."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.adapters.pattern import NonlinearPatternError, Pattern, PatternError, SuffixTable

MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj")
PATHS = [f"model.layers.{layer}.{module}" for layer in (0, 1, 7, 17) for module in MODULES]
PATHS += ["lm_head", "model.embed_tokens", "q_proj", "xq_proj", "model.layers.1"]
PATTERNS = [
    r".*\.q_proj",
    r".*q_proj$",
    r"model\.layers\.[0-3]\..*",
    r"model\.layers\.\d+\.(?:self_attn|mlp)\.(q|down)_proj",
    r".*\.(1|7)\..*(gate|up)_proj",
    r"^model.*",
    r"(?:.*?(?:self_attn|mlp).*?(?:k_proj|v_proj).*?)|(?:\bmodel\.lm\b)",
    r"(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention)\.(?:(?:q_proj|v_proj)))",
    r"lm_head|q_proj",
    r"",
    r"[^.]*",
    r".*\B_proj",
    r"(a|b)*q?_?.{3,5}j",
    r"(?:model\.)?.{0,3}.*s",
    r"\w+\.\w+\b",
    r"(?i)MODEL\..*",
    r"(?P<kind>q|v)_proj",
]


@pytest.mark.parametrize("text", PATTERNS)
def test_it_matches_what_re_matches(text: str) -> None:
    pattern = Pattern(text)
    assert [path for path in PATHS if pattern.matches(path)] == [
        path for path in PATHS if re.fullmatch(text, path)
    ]


PIECES = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\b", "^", "$"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "*?", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(text=PIECES, path=st.text(alphabet="ab1.", max_size=6))
def test_it_matches_what_re_matches_on_drawn_expressions(text: str, path: str) -> None:
    assert Pattern(text).matches(path) == (re.fullmatch(text, path) is not None)


@pytest.mark.parametrize("text", [r"(a+)+$", r"(a|aa)*b", r"(.*)*(.*)*(.*)*x", r"((((a*)*)*)*)*b"])
def test_what_makes_re_backtrack_for_ever_is_matched(text: str) -> None:
    assert not Pattern(text).matches("a" * 400 + "!")


@pytest.mark.parametrize(
    "text", [r"(a)\1", "(?!a)b", "(?<=q)_proj", "(?>a+)b", "(?x)a b", r"a\Z", "a" * 5000, "(?:a{1000}){1000}"]
)
def test_what_re_alone_can_match_is_told(text: str) -> None:
    with pytest.raises(NonlinearPatternError):
        Pattern(text)


def test_a_table_holds_a_bounded_number_of_expressions_and_any_number_of_paths() -> None:
    keys = {f"model.layers.{index}.q_proj": index for index in range(5000)}
    assert SuffixTable([*keys, *[f"a{index}.*" for index in range(64)]]).find("model.layers.9.q_proj") == 9
    with pytest.raises(PatternError, match="is one of more than 64 regular expressions"):
        SuffixTable([f"a{index}.*" for index in range(65)])


@pytest.mark.parametrize("text", ["(", "(" * 4000, r"\1", "[z-a]"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(PatternError, match="is not a regular expression") as caught:
        Pattern(text)
    assert not isinstance(caught.value, NonlinearPatternError)
