"""TLS on both sides: the gateway's own, clients' certificates, and whom it believes to be a backend."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, free_port, stop
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table
from tests.gateway.security.certificates import Authority
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

KEY = {"authorization": f"Bearer {ACME}"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def start(gateway: GatewayProcess, **environ: str | Path) -> str:
    """Starts a gateway that serves TLS; its URL."""
    gateway.environ = {f"GRAFTWORK_GATEWAY_{name}": str(value) for name, value in environ.items()}
    gateway.start_unasked()
    return gateway.url.replace("http://", "https://")


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def answers(url: str, context: ssl.SSLContext | None = None) -> Callable[[], bool]:
    def check() -> bool:
        try:
            return httpx.get(url, verify=context or unverified()).status_code == 200
        except httpx.TransportError:
            return False

    return check


def test_clients_see_the_certificate(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, authority: Authority
) -> None:
    control_plane.publish(route_table(upstream))
    own = authority.issue("gateway")
    url = start(own_gateway, TLS_CERT=own.certificate, TLS_KEY=own.key, TLS_MIN_VERSION="1.3")
    trusting = ssl.create_default_context(cafile=authority.certificate)
    eventually(answers(url + "/readyz", trusting))
    body = {"model": "bot", "messages": ask(tokens=1)}
    answer = httpx.post(url + "/v1/chat/completions", json=body, headers=KEY, verify=trusting)
    assert answer.status_code == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(url + "/healthz")
    old = ssl.create_default_context(cafile=authority.certificate)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx.TransportError):
        httpx.get(url + "/healthz", verify=old)
    with pytest.raises(httpx.TransportError):
        httpx.get(own_gateway.url + "/healthz")


def test_clients_show_a_certificate(
    own_gateway: GatewayProcess,
    control_plane: ControlPlane,
    upstream: str,
    authority: Authority,
    tmp_path: Path,
) -> None:
    control_plane.publish(route_table(upstream))
    own, client = authority.issue("gateway"), authority.issue("client")
    url = start(own_gateway, TLS_CERT=own.certificate, TLS_KEY=own.key, TLS_CLIENT_CA=authority.certificate)
    trusting = ssl.create_default_context(cafile=authority.certificate)
    trusting.load_cert_chain(client.certificate, client.key)
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    eventually(answers(url + "/readyz", trusting))
    nobody = ssl.create_default_context(cafile=authority.certificate)
    stranger = ssl.create_default_context(cafile=authority.certificate)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other").issue("client")
    stranger.load_cert_chain(other.certificate, other.key)
    for context in (nobody, stranger):
        with pytest.raises(httpx.TransportError):
            httpx.get(url + "/healthz", verify=context)


@pytest.mark.parametrize("wrong", ["CERT", "KEY", "CLIENT_CA", "encrypted key"])
def test_files_that_hold_something_else_are_refused_at_start(
    own_gateway: GatewayProcess, authority: Authority, tmp_path: Path, wrong: str
) -> None:
    own = authority.issue("gateway")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    files = {"CERT": own.certificate, "KEY": own.key, "CLIENT_CA": authority.certificate}
    if wrong == "encrypted key":
        files["KEY"] = authority.issue("encrypted", password=b"hush").key
    else:
        files[wrong] = nonsense
    own_gateway.environ = {f"GRAFTWORK_GATEWAY_TLS_{name}": str(path) for name, path in files.items()}
    own_gateway.start_refused()
    assert "cannot be used" in own_gateway.log.read_text()


@pytest.fixture
def tls_upstream(tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Starts canned backends behind TLS, each with the certificate that it is given."""
    processes = []

    def serve(certificate: Path) -> str:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.canned_upstream", "--port", str(port)]
        with (tmp_path / "upstream.log").open("ab") as log:
            processes.append(
                subprocess.Popen(
                    [*command, "--certificate", str(certificate)], cwd=ROOT, stdout=log, stderr=log
                )
            )
        url = f"https://127.0.0.1:{port}"
        eventually(answers(url + "/log"))
        return url

    yield serve
    for process in processes:
        stop(process)


@pytest.mark.costly("starts several gateways")
def test_backends_prove_who_they_are(
    own_gateway: GatewayProcess,
    control_plane: ControlPlane,
    authority: Authority,
    tls_upstream: Callable[[Path], str],
    tmp_path: Path,
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "other")
    right = tls_upstream(authority.issue("backend").both)
    wrong = {
        "unknown authority": tls_upstream(stranger.issue("backend").both),
        "another's address": tls_upstream(authority.issue("elsewhere", address="192.0.2.1").both),
    }
    control_plane.publish(route_table(right))
    own_gateway.environ = {"GRAFTWORK_GATEWAY_BACKEND_CA": str(authority.certificate)}
    own_gateway.start()
    body = {"model": "bot", "messages": ask(tokens=1)}
    assert post(own_gateway, body).status_code == 200
    version = 1
    for url in wrong.values():
        version += 1
        table = route_table(url)
        control_plane.change(version, "bases/base", table.bases["base"])
        own_gateway.wait_version(version)
        answer = post(own_gateway, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_unreachable")
        assert httpx.get(url + "/log", verify=unverified()).json() == []
