"""The limit of images that a deployment gives vLLM reaches the routes of its copies."""

from __future__ import annotations

import pytest

from controlplane.deployments.containers.image_limit import image_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('{"image": 4}', 4),
        ('{"video": 2, "image": {"count": 3, "width": 512}}', 3),
        ("image=5,video=0", 5),
        ('{"image": 0}', 0),
        ('{"video": 2}', None),
        ('{"image": -1}', None),
        ('{"image": true}', None),
        ('{"image": 1e3}', None),
        ('{"image": {}}', None),
        ("image=" + "9" * 5000, None),
        ("[" * 5000, None),
        ("", None),
    ],
)
@pytest.mark.parametrize("prefix", ["GRAFTWORK_VLLM_FLAG_", "SM_VLLM_", "OPTION_"])
def test_the_limit_is_read_in_each_form(prefix: str, text: str, limit: int | None) -> None:
    assert image_limit({f"{prefix}LIMIT_MM_PER_PROMPT": text, "OTHER": '{"image": 9}'}) == limit


def test_an_environment_of_an_earlier_release_has_no_limit() -> None:
    assert image_limit(["LIMIT_MM_PER_PROMPT"]) is None
