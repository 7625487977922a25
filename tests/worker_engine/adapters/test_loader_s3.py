"""Adapters stored in S3: fetched, checked against their digest, and cached."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
from moto.server import ThreadedMotoServer

from contracts.adapters.reference import ADAPTER_FILES, AdapterRef
from tests.conftest import free_port
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.pool import AdapterPool
from worker_engine.adapters.registry import AdapterRegistry
from worker_engine.errors import AdapterRefused, AdapterUnavailable

BUCKET = "store"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the server, with bucket `store`."""
    for name, value in {
        "ACCESS_KEY_ID": "k",
        "SECRET_ACCESS_KEY": "s",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    # Once where nothing answers; boto3's own five attempts take seconds.
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    client = boto3.Session().client("s3", endpoint_url=s3_endpoint)
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()


@pytest.fixture
def local(tiny_adapters: dict[str, Path]) -> AdapterRef:
    return adapter_ref(tiny_adapters["plain"])


@pytest.fixture
def stored_adapter(s3: Any, local: AdapterRef, tiny_adapters: dict[str, Path]) -> AdapterRef:
    """An adapter under the address that the control plane gives it."""
    folder = f"some/prefix/adapters/{local.sha256}"
    for name in ADAPTER_FILES:
        s3.put_object(
            Bucket=BUCKET, Key=f"{folder}/{name}", Body=(tiny_adapters["plain"] / name).read_bytes()
        )
    return dataclasses.replace(local, uri=f"s3://{BUCKET}/{folder}/")


def loader(model: Path, cache: Path, endpoint: str) -> AdapterLoader:
    return AdapterLoader(
        model,
        cache,
        max_bytes=1 << 20,
        dtype=torch.float32,
        device=torch.device("cpu"),
        s3_endpoint_url=endpoint,
    )


def test_an_adapter_in_s3_is_the_one_in_the_folder(
    stored_adapter: AdapterRef, local: AdapterRef, tiny_model: Path, s3_endpoint: str, tmp_path: Path
) -> None:
    fetched = loader(tiny_model, tmp_path / "one", s3_endpoint).load(stored_adapter)
    expected = loader(tiny_model, tmp_path / "two", s3_endpoint).load(local)
    assert (fetched.sha256, fetched.nbytes) == (expected.sha256, expected.nbytes)
    for ours, theirs in zip(fetched.layers, expected.layers, strict=True):
        assert ours.keys() == theirs.keys()
        for module, pair in ours.items():
            assert torch.equal(pair.a, theirs[module].a)
            assert torch.equal(pair.b, theirs[module].b)


def test_the_cache_answers_when_s3_is_away_and_a_rotten_copy_is_not_used(
    stored_adapter: AdapterRef, tiny_model: Path, s3_endpoint: str, tmp_path: Path
) -> None:
    first = loader(tiny_model, tmp_path, s3_endpoint).load(stored_adapter)
    away = loader(tiny_model, tmp_path, f"http://127.0.0.1:{free_port()}")
    assert away.load(stored_adapter).nbytes == first.nbytes
    (weights,) = tmp_path.rglob("adapter_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(AdapterUnavailable, match=f"cannot fetch s3://{BUCKET}/some/prefix"):
        away.load(stored_adapter)
    assert loader(tiny_model, tmp_path, s3_endpoint).load(stored_adapter).nbytes == first.nbytes


def test_other_content_under_the_address_is_refused_and_not_kept(
    s3: Any, stored_adapter: AdapterRef, tiny_model: Path, s3_endpoint: str, tmp_path: Path
) -> None:
    key = f"some/prefix/adapters/{stored_adapter.sha256}/{ADAPTER_FILES[1]}"
    data = bytearray(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    data[-1] ^= 1
    s3.put_object(Bucket=BUCKET, Key=key, Body=bytes(data))
    with pytest.raises(AdapterRefused, match=f"expected {stored_adapter.sha256}"):
        loader(tiny_model, tmp_path, s3_endpoint).load(stored_adapter)
    assert list(tmp_path.rglob("*.safetensors")) == []


@pytest.mark.parametrize("uri", [f"s3://{BUCKET}/nowhere/", "s3://absent-bucket/x/"])
def test_what_is_not_there_is_named_and_may_be_tried_again(
    stored_adapter: AdapterRef, tiny_model: Path, s3_endpoint: str, tmp_path: Path, uri: str
) -> None:
    with pytest.raises(AdapterUnavailable, match=uri):
        loader(tiny_model, tmp_path, s3_endpoint).load(dataclasses.replace(stored_adapter, uri=uri))


def test_a_file_beyond_the_limit_is_refused(
    s3: Any, stored_adapter: AdapterRef, tiny_model: Path, s3_endpoint: str, tmp_path: Path
) -> None:
    key = f"some/prefix/adapters/{stored_adapter.sha256}/{ADAPTER_FILES[1]}"
    s3.put_object(Bucket=BUCKET, Key=key, Body=bytes((1 << 20) + 1))
    with pytest.raises(AdapterRefused, match="larger than"):
        loader(tiny_model, tmp_path, s3_endpoint).load(stored_adapter)


def test_an_adapter_in_s3_is_registered_by_name(
    tiny_model: Path, tmp_path: Path, s3_endpoint: str, stored_adapter: AdapterRef
) -> None:
    """The digest comes of the files themselves; the name's adapter is then the reference's."""
    fetching = loader(tiny_model, tmp_path, s3_endpoint)
    pool = AdapterPool(fetching, max_bytes=1 << 30)
    registry = AdapterRegistry(fetching, pool, root=None, base="base")
    found = asyncio.run(registry.register("a", stored_adapter.uri))
    assert (found.ref.sha256, found.src, pool.num_resident) == (stored_adapter.sha256, stored_adapter.uri, 1)
    with pytest.raises(AdapterUnavailable):
        asyncio.run(registry.register("b", f"s3://{BUCKET}/nowhere/"))
    assert len(registry) == 1
