"""One set of expectations for every host: the fake of the tests, the controller itself, a node behind SSH.

A test says beforehand what a command gives. The fake is prepared with that; the real hosts must come to it by
themselves. So a test of a higher layer that passes with the fake says something about real hosts.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.host import Command, LocalHost, put_texts
from lab.model import CommandError, NodeError, TransportError, WaitTimeout
from lab.ssh import SshHost
from tests.fakes import FakeHost, Reply
from tests.ssh_server import SshServer

LARGE = 3_000_000


class Fake:
    def __init__(self, folder):
        self.host = FakeHost()
        self.folder = folder

    def expect(self, argv, **reply):
        self.host.answer(argv, Reply(**reply))

    def read(self, target):
        return self.host.files[target][0]

    def mode(self, target):
        return self.host.files[target][1]

    def transfers(self):
        return len(self.host.transfers)

    def channels(self):
        return self.host.channels

    def close(self):
        self.host.close()


class Local:
    def __init__(self, folder):
        self.host = LocalHost()
        self.folder = folder
        self.inodes = set()

    def expect(self, argv, **reply):
        pass

    def read(self, target):
        return Path(target).read_bytes()

    def mode(self, target):
        return Path(target).stat().st_mode & 0o7777

    def transfers(self):
        self.inodes |= {path.stat().st_ino for path in self.folder.rglob("*") if path.is_file()}
        return len(self.inodes)

    def close(self):
        pass


class Ssh(Local):
    def __init__(self, folder):
        super().__init__(folder)
        self.server = SshServer(folder / "server").start()
        self.host = SshHost(self.server.address(), "node")

    def transfers(self):
        return len(self.server.opened)

    def channels(self):
        return self.server.channels

    def close(self):
        self.host.close()
        self.server.stop()


class SudoSsh(Ssh):
    """As a user who becomes root for every command."""

    def __init__(self, folder):
        Local.__init__(self, folder)
        self.server = SshServer(folder / "server").start()
        self.server.users = {"ubuntu"}
        self.server.use_sudo()
        self.host = SshHost(self.server.address(user="ubuntu"), "node", become=True)


def hosts(*kinds):
    """A fixture that makes one host of each kind in turn, and closes it."""

    @pytest.fixture(params=kinds)
    def made(request, tmp_path):
        host = request.param(tmp_path)
        yield host
        host.close()

    return made


subject = hosts(Fake, Local, Ssh, SudoSsh)


@pytest.fixture
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "binary"
    path.write_bytes(bytes(range(256)) * 2000)
    return path


class TestHost:
    def run(self, subject, *argv, stdin="", timeout_s=30.0, check=True, env=None, **reply):
        subject.expect(argv, **reply)
        return subject.host.run(Command(argv=argv, stdin=stdin, timeout_s=timeout_s, check=check, env=env or {}))

    def test_both_streams_and_status_of_a_success(self, subject):
        done = self.run(subject, "sh", "-c", "echo out; echo err >&2", stdout="out\n", stderr="err\n")
        assert (done.exit_status, done.stdout, done.stderr) == (0, "out\n", "err\n")
        assert done.argv == ("sh", "-c", "echo out; echo err >&2")
        assert done.seconds >= 0

    @pytest.mark.parametrize("status", [1, 2, 100, 124, 255])
    def test_an_unexpected_status_is_an_error_with_both_streams(self, subject, status):
        line = f"echo told; echo complained >&2; exit {status}"
        with pytest.raises(CommandError) as caught:
            self.run(subject, "sh", "-c", line, status=status, stdout="told\n", stderr="complained\n")
        text = str(caught.value)
        assert f"exit {status}: " in text
        assert "stdout: told" in text
        assert "stderr: complained" in text
        assert shlex.join(["sh", "-c", line]) in text
        assert subject.host.name in text
        assert not isinstance(caught.value, TransportError)

    def test_a_status_is_returned_when_the_caller_checks_it_himself(self, subject):
        done = self.run(subject, "sh", "-c", "echo no >&2; exit 9", check=False, status=9, stderr="no\n")
        assert (done.exit_status, done.stdout, done.stderr) == (9, "", "no\n")

    def test_a_program_that_is_not_there_is_127(self, subject):
        with pytest.raises(CommandError, match=r"exit 127: lab-no-such-program --now\nstderr: .*lab-no-such-program"):
            self.run(
                subject, "lab-no-such-program", "--now", status=127, stderr="lab-no-such-program: not found\n"
            )
        done = self.run(subject, "lab-no-such-program", check=False, status=127)
        assert done.exit_status == 127

    def test_a_file_that_is_no_program_is_126(self, subject, source):
        done = self.run(subject, str(source), check=False, status=126, stderr="Permission denied\n")
        assert done.exit_status == 126
        assert "Permission denied" in done.stderr

    @pytest.mark.parametrize(("name", "status"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
    def test_a_signal_gives_the_status_of_a_shell(self, subject, name, status):
        done = self.run(subject, "sh", "-c", f"kill -{name} $$", check=False, status=status)
        assert done.exit_status == status

    def test_a_program_outside_a_shell_that_dies_of_a_signal(self, subject, tmp_path):
        program = tmp_path / "dies"
        program.write_text("#!/bin/sh\nkill -9 $$\n")
        program.chmod(0o755)
        with pytest.raises(CommandError, match="exit 137"):
            self.run(subject, str(program), status=137)

    def test_large_output_on_both_streams_at_once(self, subject):
        line = f"head -c {LARGE} /dev/zero | tr '\\0' e >&2 & head -c {LARGE} /dev/zero | tr '\\0' o; wait"
        done = self.run(subject, "sh", "-c", line, stdout="o" * LARGE, stderr="e" * LARGE)
        assert len(done.stdout) == len(done.stderr) == LARGE
        assert set(done.stdout) == {"o"}
        assert set(done.stderr) == {"e"}

    def test_all_of_stderr_before_any_of_stdout(self, subject):
        line = f"head -c {LARGE} /dev/zero | tr '\\0' e >&2; echo after"
        done = self.run(subject, "sh", "-c", line, stdout="after\n", stderr="e" * LARGE)
        assert (done.stdout, len(done.stderr)) == ("after\n", LARGE)

    def test_standard_input_arrives_whole_and_ends(self, subject):
        text = "ä\n" * 500_000
        done = self.run(subject, "sha256sum", stdin=text, stdout=_sha256(text))
        assert done.stdout == _sha256(text)

    def test_input_comes_back_while_more_is_sent(self, subject):
        text = "0123456789\n" * 200_000
        assert self.run(subject, "cat", stdin=text, stdout=text).stdout == text

    def test_without_input_the_command_sees_its_end_at_once(self, subject):
        assert self.run(subject, "cat", stdout="").stdout == ""

    def test_a_command_may_leave_its_input_unread(self, subject):
        for _ in range(3):
            done = self.run(subject, "sh", "-c", "exec 0<&-; echo done", stdin="x" * LARGE, stdout="done\n")
            assert (done.exit_status, done.stdout) == (0, "done\n")

    def test_the_environment_of_a_command(self, subject):
        done = self.run(subject, "sh", "-c", 'echo "$A-$B"', env={"A": "1 2", "B": "'$HOME'"}, stdout="1 2-'$HOME'\n")
        assert done.stdout == "1 2-'$HOME'\n"

    def test_odd_bytes_are_marked_and_everything_else_is_kept(self, subject):
        line = "printf 'a\\377\\000b\\r\\nc\\r'; printf '\\303\\244\\360\\237' >&2"
        done = self.run(subject, "sh", "-c", line, stdout="a\ufffd\0b\r\nc\r", stderr="ä\ufffd")
        assert done.stdout == "a\ufffd\0b\r\nc\r"
        assert done.stderr == "ä\ufffd"

    @pytest.mark.parametrize("text", ["no line end", "two\n\n", "\n", "x\n\nlab-rc-0123=0\n"])
    def test_the_end_of_both_streams_is_kept_to_the_byte(self, subject, text):
        line = f"printf %s {shlex.quote(text)}; printf %s {shlex.quote(text)} >&2"
        done = self.run(subject, "sh", "-c", line, stdout=text, stderr=text)
        assert (done.stdout, done.stderr) == (text, text)

    def test_words_are_not_read_by_a_shell(self, subject):
        words = ["a b", "$HOME", "`id`", "*", "", "'", '"', "new\nline", "\\", "-n", "ä;"]
        expected = "".join(f"{word}\0" for word in words)
        assert self.run(subject, "printf", "%s\\0", *words, stdout=expected).stdout == expected

    @given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), max_size=4))
    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_words_arrive_as_they_are(self, subject, words):
        expected = "".join(f"<{word}>" for word in words) if words else "<>"
        assert self.run(subject, "printf", "<%s>", *words, stdout=expected).stdout == expected

    def test_a_command_that_does_not_end_is_a_timeout(self, subject, tmp_path):
        late = tmp_path / "late"
        line = f"sleep 60; touch {late}"
        with pytest.raises(WaitTimeout, match="sleep 60"):
            self.run(subject, "sh", "-c", line, timeout_s=0.6, seconds=60)
        assert not late.exists()

    def test_the_host_is_of_use_after_a_timeout(self, subject):
        with pytest.raises(WaitTimeout):
            self.run(subject, "sleep", "60", timeout_s=0.6, seconds=60)
        assert self.run(subject, "echo", "again", stdout="again\n").stdout == "again\n"

    def test_a_stream_held_open_by_a_child_is_a_timeout_too(self, subject):
        with pytest.raises(WaitTimeout):
            self.run(subject, "sh", "-c", "sleep 60 & echo gone", timeout_s=0.6, seconds=60)

    def test_put_copies_whole_with_its_mode(self, subject, source):
        target = str(subject.folder / "new" / "folder" / "binary")
        subject.host.put({target: source}, mode=0o755)
        assert subject.read(target) == source.read_bytes()
        assert subject.mode(target) == 0o755
        assert subject.transfers() == 1

    def test_put_of_the_same_content_only_sets_the_mode(self, subject, source):
        target = str(subject.folder / "binary")
        subject.host.put({target: source}, mode=0o644)
        before = subject.transfers()
        subject.host.put({target: source}, mode=0o700)
        assert subject.transfers() == before
        assert subject.mode(target) == 0o700
        assert subject.read(target) == source.read_bytes()

    def test_put_replaces_other_content_of_the_same_size(self, subject, source):
        target = str(subject.folder / "binary")
        subject.host.put({target: source})
        before = subject.transfers()
        source.write_bytes(source.read_bytes()[::-1])
        subject.host.put({target: source})
        assert subject.read(target) == source.read_bytes()
        assert subject.transfers() == before + 1

    def test_put_of_several_files_sends_those_that_are_not_there(self, subject, source, tmp_path_factory):
        other = tmp_path_factory.mktemp("other") / "file"
        other.write_bytes(b"other")
        files = {str(subject.folder / "one" / "a"): source, str(subject.folder / "two" / "a"): other}
        subject.host.put(files, mode=0o600)
        assert subject.transfers() == 2
        more = {**files, str(subject.folder / "one" / "b c"): other, str(subject.folder / "one" / "d"): source}
        subject.host.put(more, mode=0o755)
        assert subject.transfers() == 4
        for target, path in more.items():
            assert subject.read(target) == path.read_bytes()
            assert subject.mode(target) == 0o755

    def test_put_of_an_empty_file(self, subject, source):
        source.write_bytes(b"")
        target = str(subject.folder / "empty")
        subject.host.put({target: source})
        assert subject.read(target) == b""

    def test_put_leaves_no_temporary_file(self, subject, source):
        target = str(subject.folder / "data" / "binary")
        subject.host.put({target: source})
        subject.host.put_text("text", str(subject.folder / "data" / "text"))
        if not isinstance(subject, Fake):
            assert sorted(os.listdir(subject.folder / "data")) == ["binary", "text"]

    @pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o400])
    def test_put_text_with_its_mode_and_content(self, subject, mode):
        target = str(subject.folder / "a folder" / "it's.conf")
        text = "ä $HOME\r\n\n'quoted' \\ end without newline"
        subject.host.put_text(text, target, mode=mode)
        assert subject.read(target) == text.encode()
        assert subject.mode(target) == mode
        subject.host.put_text("", target, mode=mode)
        assert subject.read(target) == b""

    def test_put_texts_lays_down_all_files_with_their_modes(self, subject):
        texts = {
            str(subject.folder / "deep" / "er" / "secret.key"): ("key ä\n", 0o600),
            str(subject.folder / "script.sh"): ("#!/bin/sh\n", 0o755),
            str(subject.folder / "empty"): ("", 0o644),
            str(subject.folder / "large"): ("x" * LARGE, 0o644),
        }
        put_texts(subject.host, texts)
        put_texts(subject.host, texts)
        for target, (text, mode) in texts.items():
            assert subject.read(target) == text.encode()
            assert subject.mode(target) == mode


far = hosts(Fake, Ssh, SudoSsh)


class TestChannels:
    """Round trips to a node: each command is a channel, and so is an SFTP session."""

    def count(self, far, act):
        before = far.channels()
        act()
        return far.channels() - before

    def test_a_command_and_a_text_take_one(self, far):
        far.expect(("true",))
        assert self.count(far, lambda: far.host.run(Command(argv=("true",)))) == 1
        assert self.count(far, lambda: far.host.put_text("text", str(far.folder / "text"))) == 1
        texts = {str(far.folder / name): ("text", 0o644) for name in "abc"}
        assert self.count(far, lambda: put_texts(far.host, texts)) == 1

    def test_files_take_three_however_many_there_are(self, far, source):
        files = {str(far.folder / name / "file"): source for name in ("one", "two", "three")}
        assert self.count(far, lambda: far.host.put(files)) == 3
        assert self.count(far, lambda: far.host.put(files, mode=0o755)) == 1
        assert self.count(far, lambda: far.host.put({**files, str(far.folder / "four"): source})) == 3


real = hosts(Local, Ssh, SudoSsh)


class TestRealHost:
    """Expectations that need a file system or a process behind them."""

    def test_what_cannot_be_written_is_an_error_of_the_node(self, real, source):
        (real.folder / "file").write_text("in the way")
        for act in (
            lambda target: real.host.put({target: source}),
            lambda target: real.host.put_text("text", target),
            lambda target: put_texts(real.host, {target: ("text", 0o644)}),
        ):
            with pytest.raises(NodeError, match=r"/file") as caught:
                act(str(real.folder / "file" / "below"))
            assert not isinstance(caught.value, TransportError)
        assert (real.folder / "file").read_text() == "in the way"

    def test_a_file_that_is_written_over_keeps_its_readers(self, real, source):
        target = real.folder / "binary"
        target.write_bytes(b"old")
        with target.open("rb") as reader:
            real.host.put({str(target): source})
            assert reader.read() == b"old"
        assert target.read_bytes() == source.read_bytes()


def _sha256(text):
    return f"{hashlib.sha256(text.encode()).hexdigest()}  -\n"
