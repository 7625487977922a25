"""The linear-time matcher says what `re` says, and gives up where `re` would hang."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_engine.adapters.pattern import Pattern, PatternError

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
    r"\w+\.\w+\Z",
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
def test_what_makes_re_backtrack_for_ever_takes_no_time(text: str) -> None:
    pattern, path = Pattern(text), "a" * 400 + "!"
    assert not pattern.matches(path)
    assert pattern._steps <= (len(path) + 1) * (len(pattern._reads) + 1), "more than each state once a letter"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "is no regular expression"),
        ("(" * 4000, "is no regular expression"),
        (r"(a)\1", "groupref"),
        ("(?!a)b", "assert_not"),
        ("(?i)a", "flags"),
        ("(?i:a)", "subpattern"),
        ("a" * 5000, "longer than"),
        ("(?:a{1000}){1000}", "states"),
        ("a{4294967294}", "states"),
    ],
)
def test_what_cannot_be_bounded_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        Pattern(text)


def test_all_calls_together_are_bounded() -> None:
    pattern = Pattern("(" + "|".join(f".*{i}x" for i in range(100)) + ")")
    paths = [f"{index:0200d}" for index in range(2000)]
    with pytest.raises(PatternError, match="too long"):
        any(pattern.matches(path) for path in paths)
