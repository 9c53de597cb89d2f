"""A guest as the user's own host: reached as an ordinary user with sudo, and as it was before when the run is over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.host import Command, Deadline
from lab.parse.cpu_window import MAX_FROZEN
from lab.providers.digitalocean.user_data import cloud_config
from lab.ssh import Address, SshHost
from lab.ssh_keys import make_key_pair
from lab.store import Store
from tests.cloud_guests import GuestMachines, artifacts_folder
from tests.excuses import complaints
from tests.guests import Lab
from tests.link import Link

pytestmark = [pytest.mark.guest, pytest.mark.e2e]

SSH_PORT = 2223
LINK_LOST_S = 60.0


@dataclass
class Machine:
    """A machine of the user's: reached through ``link``, its key in ``known_hosts``."""

    known_hosts: Path
    link: Link
    identity: Path
    root: SshHost

    @property
    def words(self) -> tuple[str, ...]:
        return (
            "--host", f"debian@127.0.0.1:{self.link.port}", "--identity", str(self.identity),
            "--known-hosts", str(self.known_hosts),
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Debian after its first boot, with a user who has sudo and nothing of Kubernetes."""
    guests = GuestMachines(tmp_path / "machines", ssh_port=SSH_PORT)
    host_private, host_public = make_key_pair("host")
    private, public = make_key_pair("user")
    identity = tmp_path / "id_ed25519"
    identity.touch(mode=0o600)
    identity.write_text(private)
    user_data = cloud_config(host_private=host_private, host_public=host_public, ssh_port=SSH_PORT)
    droplet = {"id": 1, "name": "own-host", "vcpus": 2}
    guests.start(droplet, user_data, [public.strip()])
    link = Link(guests.port_behind_gate(1))
    root = SshHost(
        Address(host="127.0.0.1", port=link.port, user="root", host_keys=(host_public.strip(),), identity=identity),
        "own-host",
    )
    try:
        root.wait_ready(Deadline.after(500))
        root.run(Command(argv=("cloud-init", "status", "--wait"), timeout_s=300, check=False, repeatable=True))
        known_hosts = tmp_path / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{link.port} {host_public}")
        yield Machine(known_hosts=known_hosts, link=link, identity=identity, root=root)
    finally:
        root.close()
        link.stop()
        guests.close()


def test_a_lost_link_costs_no_sample_and_the_host_is_as_it_was(
    tmp_path: Path, artifacts: Path, machine: Machine
) -> None:
    lab = Lab(results=tmp_path / "results", artifacts=artifacts_folder(tmp_path / "artifacts", artifacts))
    words = lab.run_words("v1.36.3", *machine.words, "--distro", "upstream", "--stages", "class,cpu", "--json")
    child = lab.start(*words)
    assert child.stdout is not None
    said = []
    for line in child.stdout:
        said.append(line)
        if "cpu pair 1 of 1" in line:
            time.sleep(3)
            machine.link.cut_for(LINK_LOST_S)
            break
    said += child.stdout.readlines()
    child.stdout.close()
    code = child.wait(timeout=1500)
    text = "".join(said)
    cell = json.loads(text[text.rindex("\n[\n") :])[0]
    assert cell["problem"] is None, text
    outcomes = {verdict["claim"]: verdict["outcome"] for verdict in cell["verdicts"]}
    assert outcomes["class-empty-block"] == "HELD"

    attempts = Store(lab.results).attempts(smoke=True)
    assert complaints(outcomes, attempts) == [], text
    assert code == (3 if "UNKNOWN" in outcomes.values() else 0), text
    (attempt,) = [attempt for attempt in attempts if attempt.stage == "cpu"]
    assert attempt.environment.must_agree["provider"] == "ssh"
    window = next(
        entry for entry in (attempt.observation or {})["windows"] if entry["pair"] == 1 and entry["try"] == 1
    )
    # Five seconds, a sample each: the program on the node never noticed that nobody was there.
    assert window["samples"] == 6
    assert not any("gap" in reason for reason in window["why_not"])
    # The control plane stood still, although nobody was there to hold it.
    assert 0 <= window["frozen_plane_cores"] <= MAX_FROZEN

    # The host as its own root sees it: nothing of the lab, nothing that runs.
    for path in ("/opt/lab", "/etc/lab", "/var/lib/lab", "/var/lib/kubelet", "/run/lab", "/etc/cni"):
        assert machine.root.run(Command(argv=("test", "-e", path), check=False)).exit_status == 1, path
    listed = machine.root.run(Command(argv=("ps", "-e", "-o", "comm="))).stdout.split()
    assert not {"kubelet", "containerd", "etcd", "kube-apiserver"} & set(listed)


