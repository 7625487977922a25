"""The register page's sources in a real browser: large files go piece by piece, and on after a break."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect
from pytest_django import Settings

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.quotas import quota_set
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.uploads.models import Upload
from controlplane.tenants.models import Tenant
from tests.controlplane.conftest import adapter_files
from tests.controlplane.console.conftest import make_adapter_files
from tests.controlplane.console.test_browser import Open, open_page, validating

__all__ = ["open_page", "validating"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]


def large_archive(folder: Path) -> Path:
    """An adapter with 9 MB of incompressible data."""
    path = folder / "adapter.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in make_adapter_files(folder / "files"):
            archive.write(file, file.name)
        archive.writestr("training.log", os.urandom(9_000_000))
    return path


def test_a_large_archive_goes_in_pieces_and_on_after_a_break(
    open_page: Open, validating: object, tmp_path: Path, settings: Settings
) -> None:
    # The tests' server is Django's own, which takes a piece into memory whole.
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 8 << 20
    page = open_page("/t/acme/adapters/new")
    sent: list[str] = []

    def lose_the_second(route: Route) -> None:
        if route.request.method == "PATCH":
            sent.append(route.request.headers["upload-offset"])
            if len(sent) == 2:
                route.abort()
                return
        route.continue_()

    page.route("**/api/v1/uploads/*", lose_the_second)
    page.get_by_test_id("register-files").set_input_files([large_archive(tmp_path)])
    # The registration is refused after the upload, as if the name had been taken meanwhile.
    page.route("**/adapters/new/check", lambda route: route.fulfill(status=204))
    page.get_by_test_id("register-name").fill("Not A Slug")
    page.get_by_test_id("register-submit").click()
    expect(page.get_by_test_id("error-name")).to_contain_text("lower-case letters", timeout=20_000)
    assert sent == ["0", str(4 << 20), str(4 << 20), str(8 << 20)]
    # The name is mended; what has been uploaded is not sent again.
    page.get_by_test_id("register-name").fill("large")
    page.get_by_test_id("register-submit").click()
    page.wait_for_url("**/adapters/large/")
    assert len(sent) == 4
    version = AdapterVersion.objects.get(adapter__name="large")
    assert version.source == f"upload:{Upload.objects.get().pk}"


@pytest.mark.parametrize("size", [1 << 10, 9_000_000])
def test_the_form_is_checked_before_a_file_is_sent(
    open_page: Open, validating: object, tmp_path: Path, settings: Settings, size: int
) -> None:
    """Small files are sent with the form, large ones in parts ahead of it; both wait for the check."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 8 << 20
    files = make_adapter_files(tmp_path / "adapter")
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes() + bytes(size))
    tenant = Tenant.objects.get(pk="acme")
    quota_set(tenant=tenant, size_bytes=weights.stat().st_size)
    page = open_page("/t/acme/adapters/new")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method != "GET" else None)
    page.get_by_test_id("register-files").set_input_files(files)
    for name, error in (
        ("tiny", "is a base model"),
        ("large", f"the tenant may keep {weights.stat().st_size}"),
    ):
        page.get_by_test_id("register-name").fill(name)
        page.get_by_test_id("register-submit").click()
        expect(page.get_by_test_id("error-name")).to_contain_text(error)
    assert [url.rpartition("/")[2] for url in sent] == ["check", "check"]
    assert not Upload.objects.exists()
    # The chosen files stay in the form.
    quota_set(tenant=tenant)
    page.get_by_test_id("register-submit").click()
    page.wait_for_url("**/adapters/large/")


def test_a_pickle_is_refused_in_the_page(open_page: Open, tmp_path: Path) -> None:
    pickle = tmp_path / "adapter_model.bin"
    pickle.write_bytes(bytes(9_000_000))
    page = open_page("/t/acme/adapters/new")
    page.get_by_test_id("register-name").fill("pickled")
    page.get_by_test_id("register-files").set_input_files([pickle])
    page.get_by_test_id("register-submit").click()
    expect(page.get_by_role("status").or_(page.locator(".toast")).first).to_contain_text("graftwork convert")
    assert not Upload.objects.exists()


@pytest.mark.parametrize("size", [1 << 10, 9_000_000])
def test_a_trainers_folder_is_taken_without_its_state(
    open_page: Open, tmp_path: Path, settings: Settings, size: int
) -> None:
    """A small adapter goes in one request, a large one ahead of the form."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 8 << 20
    files = {**adapter_files(), "optimizer.pt": bytes(9_500_000), "training_args.bin": b"x"}
    files["adapter_model.safetensors"] += bytes(size)  # the page does not look into it
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    page = open_page("/t/acme/adapters/new")
    page.get_by_test_id("register-name").fill("trained")
    page.get_by_test_id("register-files").set_input_files([tmp_path / name for name in files])
    page.get_by_test_id("register-submit").click()
    page.wait_for_url("**/adapters/trained/")
    assert AdapterVersion.objects.filter(adapter__name="trained").count() == 1


def test_a_hub_is_chosen_with_a_credential_that_is_never_shown(open_page: Open) -> None:
    page = open_page("/t/acme/source-credentials/")
    page.get_by_test_id("credential-name").fill("our-hub")
    page.get_by_test_id("credential-secret").fill("hf_NeverShownAgain")
    page.get_by_test_id("credential-submit").click()
    expect(page.get_by_test_id("credential-our-hub")).to_be_visible()
    assert "hf_NeverShownAgain" not in page.content()
    assert SourceCredential.objects.get().name == "our-hub"
    page.goto("/t/acme/adapters/new")
    page.get_by_test_id("register-name").fill("from-hub")
    page.locator("label", has=page.get_by_test_id("register-by-hub")).click()
    page.get_by_test_id("register-credential").select_option("our-hub")
    page.get_by_test_id("register-submit").click()
    expect(page.locator("#error-hub_id")).to_contain_text("owner/name")
    page.get_by_test_id("register-hub-id").fill("acme/pirate")
    page.get_by_test_id("register-submit").click()
    page.wait_for_url("**/adapters/from-hub/")
    version = AdapterVersion.objects.get(adapter__name="from-hub")
    assert version.source == "hf://acme/pirate@main?credential=our-hub"
