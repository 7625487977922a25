"""Images in requests: what is read of a file, what is refused, and what is reserved."""

from __future__ import annotations

import io
import random
from typing import Any

import orjson
import PIL.Image
import pytest

from contracts.image_bounds import MAX_IMAGES
from contracts.image_tokens import UNKNOWN_MOST, ImageTokens
from gateway.admission.admit import reservation
from gateway.api.image_header import image_size
from gateway.api.images import Image
from gateway.api.responses.request import parse as parse_response
from gateway.api.schema import CHAT, Call, parse
from gateway.errors import BadRequest
from tests.gateway.api.pictures import data_url, gif, image_part, jpeg, png, webp

PICTURE = data_url(png(64, 32))
TEXT = {"type": "text", "text": "What is this?"}


def call(*parts: Any, hosts: frozenset[str] = frozenset()) -> Call:
    message = {"role": "user", "content": list(parts)}
    return parse(CHAT, orjson.dumps({"model": "m", "messages": [message]}), image_hosts=hosts)


@pytest.mark.parametrize(
    "file",
    [
        png(640, 480),
        gif(640, 480),
        gif(2, 2, screen=(640, 480)),
        gif(640, 480, b"!\xf9\x04" + bytes(5) + b"!\xfe\x02hi\x00"),
        jpeg(640, 480),
        jpeg(640, 480, b"\xff\xe1\x00\x06Exif" + b"\xff" * 3 + b"\xfe\x00\x04hi"),
        jpeg(4, 480, b"\xff\xc0\x00\x11\x08\x00\x04\x02\x80\x03" + bytes(9)),
        webp(640, 480, b"VP8 "),
        webp(640, 480, b"VP8L"),
        webp(640, 480, b"VP8X"),
    ],
)
def test_a_size_is_read_from_the_head(file: bytes) -> None:
    assert image_size(file) == (640, 480)
    for length in range(len(file)):
        assert image_size(file[:length]) in (None, (640, 480))


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"%PDF-1.7",
        b"<svg width='1' height='1'/>",
        b"II*\0" + bytes(40),
        png(0, 4),
        jpeg(4, 0),
        b"RIFF\0\0\0\0WEBPXXXX" + bytes(40),
        b"\x89PNG\r\n\x1a\n" + bytes(40),
        gif(0, 4),
        gif(4, 4)[:13] + bytes(6) + b"!\xfe" + b"\x01x" * 5000 + b"\x00" + gif(4, 4)[19:],
        b"\xff\xd8\xff\x00\xff" + jpeg(2000, 2000)[1:] + jpeg(1, 1)[20:],
        b"\xff\xd8" + b"\xff\xe0\x00\x00" * 100_000,
        b"\xff\xd8" + b"\xff" * 100_000,
    ],
)
def test_other_files_have_no_size(file: bytes) -> None:
    assert image_size(file) is None


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("GIF", {"comment": b"made by a test"}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "exif": b"Exif\x00\x00" + bytes(100)}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": False}),
    ],
)
def test_sizes_are_those_of_a_decoder(form: str, options: dict[str, Any]) -> None:
    for size in ((1, 1), (31, 17), (300, 2)):
        file = io.BytesIO()
        PIL.Image.new("RGB", size, "red").save(file, form, **options)
        assert image_size(file.getvalue()) == size


def test_any_bytes_have_a_size_or_none() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        file = bytearray(draw.choice([png, gif, jpeg])(99, 99))
        file[draw.randrange(len(file))] = draw.randrange(256)
        size = image_size(bytes(file))
        assert size is None or min(size) > 0


def test_an_image_passes_unchanged() -> None:
    found = call(TEXT, image_part(PICTURE, detail="low"), "and this?", image_part(PICTURE))
    assert found.images == (Image(64, 32), Image(64, 32))
    parts = found.parameters["messages"][0]["content"]
    assert parts == [TEXT, image_part(PICTURE, detail="low"), "and this?", image_part(PICTURE)]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (image_part("data:image/png;base64,!!!"), "is not base64"),
        (image_part("data:image/png;base64,"), "is not a PNG"),
        (image_part("data:image/png," + PICTURE), "must be data:<media type>;base64"),
        (image_part(data_url(png(4, 4), "image/svg+xml")), "media type must be one of image/png"),
        (image_part(data_url(b"<svg/>")), "is not a PNG, JPEG, WebP or GIF"),
        (image_part(data_url(png(16_385, 1))), "16385 x 1 pixels"),
        (image_part(PICTURE, detail="huge"), "detail must be one of"),
        (image_part(PICTURE, fetch=True), "fetch is not served"),
        ({**image_part(PICTURE), "uuid": "another-tenants"}, "uuid is not served"),
        ({"type": "image_url", "image_url": PICTURE}, "an object with a url"),
        ({"type": "image_url"}, "an object with a url"),
        ({"type": "video_url", "video_url": {"url": "http://169.254.169.254/"}}, "other kinds"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "other kinds"),
        ({"type": "image_embeds", "image_embeds": "x"}, "other kinds"),
        ({"image_url": {"url": "http://169.254.169.254/"}}, "other kinds"),
        ({"type": ["text"], "text": "x"}, "other kinds"),
        ({"type": "text", "text": {"image_url": "x"}}, "text must be a string"),
        ({**TEXT, "uuid": "another-tenants", "image_url": None}, "image_url is not served"),
        ({"type": "thinking", "thinking": "x", "video_url": "http://169.254.169.254/"}, "video_url is not"),
        ({"type": "input_text", "text": "x", "image_url": "http://169.254.169.254/"}, "other kinds"),
        (7, "other kinds"),
    ],
)
def test_a_wrong_part_is_named(part: Any, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        call(TEXT, part)
    assert said in caught.value.message
    assert caught.value.param is not None
    assert caught.value.param.startswith("messages[0].content[1]")


ALLOWED = frozenset({"images.example.com"})


@pytest.mark.parametrize(
    ("url", "served"),
    [
        ("https://images.example.com/cat.png?size=2#x", True),
        ("https://images.example.com:443/cat.png", True),
        ("http://images.example.com/cat.png", False),
        ("https://images.example.com", False),
        ("https://images.example.com:8443/cat.png", False),
        ("https://me@images.example.com/cat.png", False),
        ("https://169.254.169.254/latest", False),
        ("https://images.example.com\\@169.254.169.254/", False),
        ("https://images.example.com/\\@169.254.169.254/", False),
        ("https://images.example.com.evil.test/", False),
        ("https://images.example.com/cat.png\n", False),
        ("HTTPS://IMAGES.EXAMPLE.COM/", False),
        ("file:///etc/passwd", False),
        ("https://images.example.com/" + "x" * 5000, False),
    ],
)
def test_only_urls_of_listed_hosts_pass(url: str, served: bool) -> None:
    with pytest.raises(BadRequest, match="data URLs are served"):
        call(image_part(url))
    if served:
        assert call(image_part(url), hosts=ALLOWED).images == (Image(),)
    else:
        with pytest.raises(BadRequest, match=r"https URLs of images\.example\.com, and data URLs"):
            call(image_part(url), hosts=ALLOWED)


def test_content_is_a_text_or_a_list() -> None:
    for content in ({"type": "text", "text": "x"}, 7, True):
        with pytest.raises(BadRequest, match="must be a string or a list of parts"):
            parse(CHAT, orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}))


def test_the_pixels_of_all_images_together_are_bounded() -> None:
    """A one-color file of 8 KB may decode to 192 MiB."""
    large = image_part(data_url(png(8192, 4096)), detail=None)
    assert call(large, large).images == (Image(8192, 4096),) * 2
    with pytest.raises(BadRequest, match="100663296 pixels together, at most 67108864"):
        call(large, large, large)
    with pytest.raises(BadRequest, match="256000000 pixels together"):
        call(image_part(data_url(png(16_000, 16_000))))


def test_images_are_counted_over_all_messages() -> None:
    message = {"role": "user", "content": [image_part(PICTURE)]}
    with pytest.raises(BadRequest, match=f"at most {MAX_IMAGES} images"):
        parse(CHAT, orjson.dumps({"model": "m", "messages": [message] * (MAX_IMAGES + 1)}))


def test_the_reservation_is_the_base_models_bound() -> None:
    found = call(TEXT, image_part(data_url(png(1024, 1024))))
    size = 1 << 20  # of the body: an image's base64 is no text
    text = call(TEXT).prompt_estimate
    assert reservation(found, size, 1 << 20)[0] == text + UNKNOWN_MOST
    found.image_rule = ImageTokens(16_384, 28)
    assert reservation(found, size, 1 << 20)[0] == text + 37 * 37
    assert reservation(found, size, 1000)[0] == 1000, "more than the context cannot be used"


def response(*parts: Any, kind: str = "content") -> dict[str, Any]:
    item: dict[str, Any] = {"role": "user", "content": list(parts)}
    if kind == "output":
        item = {"type": "function_call_output", "call_id": "c", "output": list(parts)}
    return {"model": "m", "input": [{"role": "user", "content": "hi"}, item]}


@pytest.mark.parametrize("kind", ["content", "output"])
def test_a_response_is_a_chat_with_images(kind: str) -> None:
    image = {"type": "input_image", "image_url": PICTURE, "detail": "high", "file_id": None}
    body = response({"type": "input_text", "text": "Look:"}, image, kind=kind)
    found = parse_response(orjson.dumps(body)).call
    assert found.images == (Image(64, 32),)
    parts = found.parameters["messages"][1]["content"]
    assert parts == [{"type": "text", "text": "Look:"}, image_part(PICTURE, detail="high")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"file_id": "file-1"}, "input[1].content[0]"),
        ({"image_url": None}, "input[1].content[0].image_url"),
        ({"image_url": "https://example.com/cat.png"}, "input[1].content[0].image_url"),
        ({"detail": "huge"}, "input[1].content[0].detail"),
        ({"uuid": "x"}, "input[1].content[0].uuid"),
    ],
)
def test_a_responses_wrong_image_is_named(fields: dict[str, Any], param: str) -> None:
    image = {"type": "input_image", "image_url": PICTURE, **fields}
    with pytest.raises(BadRequest) as caught:
        parse_response(orjson.dumps(response(image)))
    assert caught.value.param == param


def test_a_response_without_images_stays_a_text() -> None:
    texts = [{"type": "input_text", "text": text} for text in ("a", "b")]
    found = parse_response(orjson.dumps(response(*texts))).call
    assert found.parameters["messages"][1]["content"] == "ab"
