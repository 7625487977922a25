"""Chat templates stay within their bounds whatever a caller's arguments say."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jinja2
import pytest

from worker_engine.errors import InvalidRequest
from worker_engine.text import bounded_template
from worker_engine.text.bounded_template import BoundedEnvironment, render
from worker_engine.text.tokenizer import ChatTokenizer

MILLION = 1 << 20
"""The largest number that an argument may hold."""


def rendered(source: str, **variables: Any) -> str:
    return render(BoundedEnvironment(extensions=["jinja2.ext.loopcontrols"]).from_string(source), variables)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for i in range(n) %}x{% endfor %}", "ranges"),
        ("{% for i in range(9000) %}{% for k in range(9000) %}{% endfor %}{% endfor %}", "steps"),
        ("{{ text * n }}", "characters"),
        ("{{ n * text }}", "characters"),
        ("{{ ([n, n] * n) | length }}", "characters"),
        (
            "{% set m = namespace(s=text) %}{% for i in range(20) %}{% set m.s = m.s + m.s %}{% endfor %}",
            "characters",
        ),
        ("{% for a in text %}{% for b in text %}{{ text }}{% endfor %}{% endfor %}", "characters"),
        ("{% for a in text %}{% for b in text %}{{ b.c }}{% endfor %}{% endfor %}", "steps"),
        ("{% for a in text %}{% for b in text %}y{% endfor %}{% endfor %}", "steps"),
        ("{{ 9 ** n }}", "power"),
        ("{% set m = namespace(i=n) %}{% for i in range(9) %}{% set m.i = m.i * m.i %}{% endfor %}", "bits"),
        ("{{ (n ** 9) ** 60 }}", "bits"),
        (
            "{% set m = namespace(s=text) %}{% for i in range(20) %}{% set m.s = m.s ~ m.s %}{% endfor %}",
            "char",
        ),
        (
            "{% set m = namespace(s=text) %}{% for i in range(9) %}"
            "{% set x %}{% for k in range(9) %}{{ m.s }}{% endfor %}{% endset %}"
            "{% set m.s = x %}{% endfor %}",
            "char",
        ),
        ("{% macro a() %}{% for k in range(n) %}{{ text }}{% endfor %}{% endmacro %}{{ a() }}", "ranges"),
        (
            "{% macro a() %}{% for k in range(900) %}{{ text }}{% endfor %}{% endmacro %}{{ a() | length }}",
            "char",
        ),
        ("{% for a in text %}{% for b in text %}{% endfor %}{% endfor %}", "steps"),
        ("{{ '%*d' % (2 * n, 1) }}", "characters"),
        ("{{ '%2000000d' % 1 }}", "characters"),
        ("{{ '%.2000000f' % 1.5 }}", "characters"),
        ("{{ '%*d' | format(2 * n, 1) }}", "characters"),
        ("{{ '{:{}}'.format(1, 2 * n) }}", "characters"),
        ("{{ '{:2000000}'.format(1) }}", "characters"),
        ("{{ ('{0}' * 900).format(text) }}", "characters"),
        ("{{ text.encode() * n }}", "characters"),
        ("{{ text.center(2 * n) }}", "characters"),
        ("{{ text.ljust(2 * n) }}", "characters"),
        ("{{ text.rjust(2 * n) }}", "characters"),
        ("{{ text.zfill(2 * n) }}", "characters"),
        ("{{ ('\t' * 99).expandtabs(n) }}", "characters"),
        ("{{ text.replace('', text) }}", "characters"),
        ("{{ text.join(text) }}", "characters"),
        ("{{ text | center(2 * n) }}", "characters"),
        ("{{ text | center(width=2 * n) }}", "characters"),
        ("{{ text | indent(n, true) }}", "characters"),
        ("{{ [1] | batch(2 * n, 'x') | list }}", "characters"),
        ("{{ [1] | slice(2 * n) | list }}", "characters"),
        ("{{ text | join(text) }}", "characters"),
        ("{{ text | replace('', text) }}", "characters"),
        ("{{ text | wordwrap(1, wrapstring=text) }}", "characters"),
        ("{{ lipsum(n=n) }}", "undefined"),
    ],
)
@pytest.mark.costly("some of them run to their bound")
def test_what_grows_without_end_is_refused(source: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_template, "MAX_STEPS", 100_000)
    monkeypatch.setattr(bounded_template, "MAX_CHARACTERS", MILLION)
    with pytest.raises(jinja2.TemplateError, match=said):
        rendered(source, n=MILLION, text="z" * 4000)


def test_ordinary_operations_work() -> None:
    source = "{{ 2 * 3 }} {{ 'ab' * 2 }} {{ 2 ** 3 }} {{ [1] + [2] }} {{ 'a' + 'b' }} {{ range(3) | list }}"
    assert rendered(source) == "6 abab 8 [1, 2] ab [0, 1, 2]"
    assert rendered("{{ 1.5 * 2 }} {{ 1 + 1 }}") == "3.0 2"


def test_bounded_filters_methods_and_loops_work() -> None:
    source = (
        "{{ 'a' ~ 1 ~ none }} {{ 'x' | center(3) }}| {{ [1, 2] | join('-') }} {{ 'aa' | replace('a', 'b') }} "
        "{{ '%03d %s' | format(7, 'k') }} {{ '%5.1f' % 2.25 }} {{ '{:>3}'.format(1) }} {{ 'a'.zfill(3) }} "
        "{{ 'a\nb' | indent(1) }} {{ [1, 2, 3] | batch(2) | list }} {{ ','.join(['a', 'b']) }} {{ 7 % 4 }}"
    )
    expected = "a1None  x | 1-2 bb 007 k   2.2   1 00a a\n b [[1, 2], [3]] a,b 3"
    assert rendered(source) == expected
    body = "{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}"
    loop = "{% for i in n if i != 2 %}" + body + "{% else %}-{% endfor %}"
    assert rendered(loop, n=[1, 2, 3]) == "1/2,2/2"
    assert rendered(loop, n=[]) == "-"
    assert rendered("{% for k, v in d.items() %}{{ k }}{{ v }}{% break %}{% endfor %}", d={"a": 1}) == "a1"


def test_each_rendering_has_a_budget_of_its_own() -> None:
    template = BoundedEnvironment().from_string("{% for i in range(n) %}{{ m.x }}{% endfor %}")
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: render(template, {"n": 9000, "m": {"x": "x"}}), range(30)))
    assert {len(text) for text in texts} == {9000}


def test_the_callers_error_says_so(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    template = "{% for i in range(pad) %} {% endfor %}{{ messages[0].content }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = ChatTokenizer(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages, arguments={"pad": 3}) == "   hi"
    with pytest.raises(InvalidRequest, match="the chat template refuses: its ranges have more than"):
        tokenizer.render_chat(messages, arguments={"pad": MILLION})
