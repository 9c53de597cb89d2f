"""A login user who is not root: everything runs by sudo, files arrive in a folder of his own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.host import Command, put_texts
from lab.model import NodeError, TransportError
from lab.ssh import Reconnect, SshHost
from tests.ssh_server import SshServer

SOON = Reconnect(limit_s=30, first_pause_s=0.01, longest_pause_s=0.05, answer_s=60)
PASSWORD = "sudo: a password is required\n"


@pytest.fixture
def server(tmp_path):
    made = SshServer(tmp_path / "server").start()
    made.users = {"root", "ubuntu"}
    yield made
    made.stop()


@pytest.fixture
def login(server):
    made = []

    def make(user="ubuntu", become=True):
        host = SshHost(server.address(user=user), "node-1", become=become, reconnect=SOON)
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(bytes(range(256)) * 1000)
    return path


def arrivals(server):
    """Folders of files that arrived, as far as they are still there."""
    return [path.parent for path in map(Path, server.opened) if path.parent.exists()]


def test_a_command_runs_as_root_with_its_environment_input_and_deadline(server, login):
    server.use_sudo()
    argv = ("sh", "-c", 'cat; echo "$LAB_TEST_ROOT $A $HOME"')
    done = login().run(Command(argv=argv, stdin="in ", env={"A": "1 2"}, timeout_s=70))
    assert done.stdout == "in 1 1 2 /root\n"
    assert server.executed[0].startswith("sudo -n -- timeout -k 5 75 env 'A=1 2' sh -c ")


@pytest.mark.parametrize("status", [0, 1, 3, 124, 137])
def test_the_status_is_that_of_the_command(server, login, status):
    server.use_sudo()
    assert login().run(Command(argv=("sh", "-c", f"exit {status}"), check=False)).exit_status == status


@pytest.mark.parametrize(("user", "become"), [("root", True), ("root", False), ("ubuntu", False)])
def test_sudo_is_asked_only_when_it_is_wanted_and_needed(server, login, user, become):
    server.use_sudo(refusal="never")
    assert login(user, become).run(Command(argv=("echo", "in"))).stdout == "in\n"
    assert server.count("sudo") == 0


class TestCheck:
    def test_a_user_who_may_become_root_passes(self, server, login):
        server.use_sudo()
        login().check_become()

    @pytest.mark.parametrize(
        ("refusal", "reason"),
        [
            (PASSWORD, "sudo asks for a password"),
            ("sudo: unable to resolve host x\n" + PASSWORD, "sudo asks for a password"),
            ("ubuntu is not in the sudoers file.\n", "sudo says: ubuntu is not in the sudoers file."),
            ("first\nsudo: sorry, you must have a tty to run sudo\n", "sudo says: sudo: sorry, you must have a tty"),
            ("", "sudo says: exit 1, ''"),
        ],
    )
    def test_a_refusal_is_one_clear_error(self, server, login, refusal, reason):
        server.use_sudo(refusal)
        with pytest.raises(NodeError) as caught:
            login().check_become()
        text = str(caught.value)
        assert text.startswith(f"node-1: ubuntu is not root, and {reason}")
        assert "ubuntu ALL=(ALL) NOPASSWD: ALL" in text
        assert "\n" not in text
        assert not isinstance(caught.value, TransportError)
        assert len(server.executed) == 1

    def test_a_node_without_sudo(self, server, login):
        folder = server.folder / "bin"
        folder.mkdir()
        for name in ("sh", "timeout", "id"):
            (folder / name).symlink_to(shutil.which(name))
        server.environment["PATH"] = str(folder)
        with pytest.raises(NodeError, match="ubuntu is not root, and there is no sudo"):
            login().check_become()

    def test_a_user_who_is_not_root_and_does_not_become_it(self, server, login):
        server.use_sudo()
        with pytest.raises(NodeError, match="sudo is not used here"):
            login(become=False).check_become()

    def test_a_lost_connection_is_not_taken_for_a_refusal(self, server, login):
        server.use_sudo()
        server.break_next("id -u", "drop")
        login().check_become()


class TestFiles:
    def test_a_file_arrives_in_a_private_folder_and_is_installed_by_root(self, server, login, source, tmp_path):
        server.use_sudo()
        target, modes = tmp_path / "opt" / "binary", []
        server.on_open = lambda: modes.extend(folder.stat().st_mode & 0o777 for folder in arrivals(server))
        login().put({str(target): source}, mode=0o755)
        assert modes == [0o700]
        assert target.read_bytes() == source.read_bytes()
        assert target.stat().st_mode & 0o7777 == 0o755
        (arrival,) = server.opened
        assert Path(arrival).match("/var/tmp/lab-put-*/1")
        # The folder is made and filled by SFTP, as the login user; all commands are root's.
        assert all(line.startswith("sudo -n -- ") for line in server.executed)
        assert arrivals(server) == []
        assert [path.name for path in target.parent.iterdir()] == ["binary"]

    def test_texts_are_written_by_root(self, server, login, tmp_path):
        server.use_sudo()
        host = login()
        host.put_text("text", str(tmp_path / "a"), mode=0o600)
        put_texts(host, {str(tmp_path / "b"): ("more", 0o644)})
        assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("text", "more")
        assert all(line.startswith("sudo -n -- ") for line in server.executed)

    def test_what_arrived_otherwise_is_removed_and_never_installed(self, server, login, source, tmp_path):
        server.use_sudo()
        server.corrupt_uploads = True
        with pytest.raises(NodeError, match="binary arrived as"):
            login().put({str(tmp_path / "target"): source})
        assert arrivals(server) == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["binary", "server"]

    def test_a_target_that_cannot_be_written_leaves_nothing(self, server, login, source, tmp_path):
        server.use_sudo()
        (tmp_path / "target").mkdir()
        (tmp_path / "target" / "inside").write_text("kept")
        with pytest.raises(NodeError, match="target"):
            login().put({str(tmp_path / "target"): source})
        assert arrivals(server) == []
        assert (tmp_path / "target" / "inside").read_text() == "kept"

    @pytest.mark.parametrize("word", ["mkdir -p", "mv -fT"])
    def test_a_lost_answer_at_any_step_is_survived(self, server, login, source, tmp_path, word):
        server.use_sudo()
        server.break_next(word, "drop")
        login().put({str(tmp_path / "target"): source})
        assert (tmp_path / "target").read_bytes() == source.read_bytes()
        assert arrivals(server) == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["binary", "server", "target"]
