"""`lab` in processes of its own against the local DigitalOcean API over HTTP; there are no binaries and no guests.

The program is the real one but for the distribution, which has nothing to install, and for shorter patience.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.digitalocean_api import Account, Behaviour, LocalDigitalOcean, NoMachines
from tests.digitalocean_api.limits import RateLimits
from tests.projects import ROOT, make_project

DRIVER = """\
import json, sys
from lab import experiment
from lab.cli import main
from lab.distros.registry import DISTROS
from lab.providers.digitalocean import provider
from lab.providers.digitalocean.api import Api
from tests.fakes import FakeDistro

class NothingToInstall(FakeDistro):
    def files(self, cell, site):
        return {}

patience = json.loads(sys.argv[1])
experiment.BOOT_S = patience["boot_s"]
provider.SETTLE_S = patience["settle_s"]
Api.__init__.__kwdefaults__["retry_s"] = patience["retry_s"]
DISTROS["upstream"] = lambda setup: NothingToInstall()
code = 0
for words in json.loads(sys.argv[2]):
    code = main.main(words)
    print(f"exit {code}: {words[:3]}", file=sys.stderr, flush=True)
sys.exit(code)
"""


class OnLoopback(NoMachines):
    """Every droplet has the address of this machine."""

    def address(self, droplet_id: int) -> str | None:
        return "127.0.0.1" if droplet_id in self.addresses else None


class _Address(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"127.0.0.1\n")

    def log_message(self, format: str, *args: object) -> None:
        """Keep the report of the tests short."""


@contextmanager
def address_service() -> Iterator[str]:
    """URL of a service that tells this machine's address."""
    with HTTPServer(("127.0.0.1", 0), _Address) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of loopback on which nobody listens, held so that nobody else gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def new_account(token: str, behaviour: Behaviour | None = None) -> Account:
    """An account on the real clock whose droplets are on loopback."""
    limits = RateLimits(per_hour=None, per_minute=None, key_listings_per_minute=None)
    return Account(
        clock=time.time, tokens={token: None}, machines=OnLoopback(), behaviour=behaviour, limits=limits
    )  # fmt: skip


@dataclass(kw_only=True)
class Office:
    """A project, a cache and an account, and the program on them."""

    folder: Path
    token: str
    api: LocalDigitalOcean
    address_url: str
    closed_port: int
    boot_s: float = 60.0
    settle_s: float = 6.0
    retry_s: float = 4.0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "LAB_CACHE": str(self.cache),
            "LAB_DIGITALOCEAN_API": self.api.url,
            "LAB_PUBLIC_ADDRESS_URL": self.address_url,
            "DIGITALOCEAN_TOKEN": self.token,
        }

    def run_words(self, *more: str, ssh_port: int | None = None) -> list[str]:
        return [
            "run", "--provider", "digitalocean", "--distro", "upstream", "--versions", "v1.36.3", "--stages", "class",
            "--quick", "--results", str(self.results), "--ssh-port", str(ssh_port or self.closed_port), *more,
        ]  # fmt: skip

    def start(self, *calls: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Run the calls one after the other in one process; the code is that of the last. Output goes to files."""
        patience = json.dumps({"boot_s": self.boot_s, "settle_s": self.settle_s, "retry_s": self.retry_s})
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, patience, json.dumps([list(words) for words in calls])],
                cwd=self.folder / "project", env=environment or self.environment, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.started.append(process)
        return process

    @property
    def stdout(self) -> Path:
        return self.folder / "stdout"

    @property
    def stderr(self) -> Path:
        return self.folder / "stderr"

    def errors(self) -> str:
        return self.stderr.read_text(errors="replace")


@contextmanager
def office(folder: Path, token: str, account: Account) -> Iterator[Office]:
    """Everything between two processes: no process, thread or droplet outlives it."""
    make_project(folder, claims=(ROOT / "CLAIM.md").read_text())
    with address_service() as url, LocalDigitalOcean(account) as api, closed_port() as port:
        made = Office(folder=folder, token=token, api=api, address_url=url, closed_port=port)
        try:
            yield made
        finally:
            for process in made.started:
                process.kill()
                process.wait()
        assert api.unexpected == []
