"""The operator's settings reach the demo's processes, except those that the demo sets itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from controlplane.platform.environment import Environment
from demo.config import DemoConfig
from demo.model import ROOT

OWN = {
    "GRAFTWORK_EMAIL_URL": "smtp://127.0.0.1:1025",
    "GRAFTWORK_OUTGOING_ALLOW": "127.0.0.0/8",
    "GRAFTWORK_IMPORT_BUCKETS": "theirs",
    "GRAFTWORK_IMPORT_ROOTS": "/srv/adapters",
    "GRAFTWORK_OIDC_ISSUER": "https://issuer.example",
    "GRAFTWORK_OIDC_CLIENT_ID": "graftwork",
    "GRAFTWORK_OIDC_CLIENT_SECRET": "quiet",
    "GRAFTWORK_GATEWAY_QUEUE_SECONDS": "3",
    "GRAFTWORK_HUB_ENDPOINT": "",
    "HOME": "/root",
}
DECIDED = {
    "GRAFTWORK_ARTIFACT_STORE": "s3://theirs",
    "GRAFTWORK_GATEWAY_PORT": "1",
    "GRAFTWORK_GATEWAY_TLS_CERT": "/tls/cert.pem",
    "GRAFTWORK_SECRET_KEY": "k" * 50,
    "GRAFTWORK_TRUST_NETWORK": "yes",
}


def test_settings_of_the_operator_reach_the_processes(tmp_path: Path) -> None:
    config = DemoConfig.from_env(OWN | DECIDED, port_base=9000, var=tmp_path)
    given = config.environment(secret_key="s" * 50, fleet_token="t" * 50)
    read = Environment.from_env(given)  # refuses what it does not know
    assert (read.email_url, read.oidc_client_secret) == (OWN["GRAFTWORK_EMAIL_URL"], "quiet")
    assert not read.show_mail_links, "there is a mail server"
    bare = DemoConfig(var=tmp_path).environment(secret_key="s" * 50, fleet_token="t" * 50)
    assert Environment.from_env(bare).show_mail_links
    assert read.import_buckets == ("theirs",)
    assert read.import_roots == (ROOT / "demo" / "adapters", Path("/srv/adapters"))
    assert read.hub_endpoint == "https://huggingface.co", "empty is not set"
    assert given["GRAFTWORK_GATEWAY_QUEUE_SECONDS"] == "3"
    assert (given["GRAFTWORK_GATEWAY_PORT"], given["GRAFTWORK_SECRET_KEY"]) == ("9001", "s" * 50)
    assert read.artifact_store.startswith(f"file://{tmp_path}")
    assert "GRAFTWORK_GATEWAY_TLS_CERT" not in given
    assert "HOME" not in given, "what is not a setting comes with the processes"
    assert "quiet" not in repr(config)


def test_what_the_demo_decides_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        base = min(taken.getsockname()[1], 65532)
        done = subprocess.run(
            [sys.executable, "-m", "demo", "--port-base", str(base), "--var", str(tmp_path)],
            env=os.environ | OWN | DECIDED,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    (line,) = [line for line in done.stdout.splitlines() if "have no effect" in line]
    assert line.endswith(f": {', '.join(sorted(DECIDED))}")
    assert "quiet" not in done.stdout + done.stderr
    assert DemoConfig(var=tmp_path).overruled == []
