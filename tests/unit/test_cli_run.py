"""`lab run` and `lab plan` as a user meets them: one clear error, the right exit code, nothing left running."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import logging
import os
import secrets
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from lab import artifacts
from lab.cli import console, shared
from lab.cli.main import app
from lab.distros.registry import DISTROS, make_upstream
from lab.host import UNPACK, put_texts
from lab.model import NodeError, ResultsError, UsageError
from lab.providers.qemu.provider import QemuProvider
from lab.providers.registry import PROVIDERS
from lab.ssh import SshHost
from tests.fakes import FakeHost, Reply
from tests.projects import COLOUR, ROOT, commit_claims, fake_stage, tree
from tests.ssh_server import SshServer

pytestmark = pytest.mark.usefixtures("signals")

VERSION = "v1.36.3"


def program(bench, *words, script="from lab.cli.main import run; run()", **settings):
    """The program in a process of its own, as ``python -m lab`` starts it."""
    settings = {"capture_output": True, "text": True, "check": False, "timeout": 120} | settings
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", script, *words], cwd=bench.project, env=environment, **settings)


# --- bad usage


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--versions", "1.36"], ["version '1.36'", "v1.36.3"]),
        (["--versions", "latest"], ["version 'latest'", "v1.36.3"]),
        (["--versions", "v1.33.9"], ["v1.33.9", "oldest", "v1.34"]),
        (["--versions", "v1.36.3,v1.36.3"], ["upstream-v1.36.3 is asked for twice"]),
        (["--versions", "v1.36.3,1.36.3"], ["upstream-v1.36.3 is asked for twice"]),
        (["--versions", " , "], ["no version given", "example: --versions v1.36.3,v1.37.2"]),
        (["--versions", "", "--gate-leg", f"{VERSION}:A=false"], ["--versions ''", "no version given"]),
        (["--versions", ",", "--preset", "article"], ["--versions ','", "no version given"]),
        (["--versions", VERSION, "--stages", ""], ["--stages '' names no stage", "fake"]),
        (["--versions", VERSION, "--stages", " ,"], ["--stages ' ,' names no stage", "fake"]),
        (["--versions", VERSION, "--gate", ""], ["--gate ''", "NAME=false"]),
        (["--versions", VERSION, "--gate-leg", ""], ["--gate-leg ''", "VERSION:NAME=false"]),
        (["--versions", VERSION, "--distro", ""], ["--distro ''", "upstream"]),
        (["--versions", VERSION, "--order", ""], ["--order ''", "random, alternate"]),
        (["--versions", VERSION, "--provider", ""], ["--provider ''", "qemu"]),
        (["--versions", VERSION, "--preset", ""], ["article"]),
        (["--versions", VERSION, "--junit", "."], ["--junit .: that is a folder", "claims.xml"]),
        (["--versions", VERSION, "--stages", "bogus"], ["unknown stage bogus", "fake"]),
        (["--versions", VERSION, "--stages", "fake, other, bogus"], ["unknown stage bogus, other"]),
        (["--versions", VERSION, "--gate", "PodLevelResources"], ["--gate 'PodLevelResources'", "NAME=true"]),
        (["--versions", VERSION, "--gate", "PodLevelResources=off"], ["PodLevelResources=off", "NAME=false"]),
        (["--versions", VERSION, "--gate", "A=false@scheduler"], ["A=false@scheduler", "@apiserver or @kubelet"]),
        (["--versions", VERSION, "--gate", "A=false", "--gate", "A=true"], ["told both A=false and A=true"]),
        (["--versions", VERSION, "--gate-leg", VERSION], ["--gate-leg 'v1.36.3'", "VERSION:NAME=false"]),
        (["--versions", VERSION, "--gate-leg", f"{VERSION}:A"], ["--gate-leg 'v1.36.3:A': 'A' is not", "NAME=false"]),
        (["--versions", VERSION, "--gate-leg", "x:A=false"], ["--gate-leg 'x:A=false'", "'x'"]),
        (["--versions", VERSION, "--reuse-node", "--keep", "always"], ["removes it: leave out --keep"]),
        (["--versions", VERSION, "--known-hosts", "k"], ["without --host", "no use for --known-hosts: leave"]),
        (["--versions", "v1.36.3,v1.37.2", "--node", "n-1"], ["--node takes one version"]),
        (["--versions", VERSION, "--keep", "sometimes"], ["--keep sometimes", "never, failed, always"]),
        (["--versions", VERSION, "--order", "sorted"], ["--order sorted", "random, alternate"]),
        (["--versions", VERSION, "--reps", "0"], ["--reps 0", "1 to 50"]),
        (["--versions", VERSION, "--reps", "51"], ["--reps 51", "1 to 50"]),
        (["--versions", VERSION, "--provider", "aws"], ["--provider aws", "qemu"]),
        (["--versions", VERSION, "--distro", "kind"], ["--distro kind", "upstream"]),
        (["--versions", VERSION, "--max-minutes", "0"], ["--max-minutes 0", "above 0"]),
        (["--versions", VERSION, "--max-minutes", "nan"], ["--max-minutes nan", "above 0"]),
        (["--versions", VERSION, "--ssh-port", "65536"], ["--ssh-port 65536", "1 to 65535"]),
        (["--versions", VERSION, "--allow-from", "0.0.0.0/1"], ["let in 2147483648 addresses", "give one"]),
        (["--versions", VERSION, "--allow-from", "0.0.0.0/0"], ["0.0.0.0/0", "let in 4294967296 addresses"]),
        (["--versions", VERSION, "--allow-from", "198.51.100.6/31"], ["198.51.100.6/31", "let in 2 addresses"]),
        (["--versions", VERSION, "--allow-from", "0.0.0.0"], ["0.0.0.0", "address of no machine"]),
        (["--versions", VERSION, "--allow-from", "198.51.100.7/24"], ["198.51.100.7/24", "give one IPv4 address"]),
        (["--versions", VERSION, "--allow-from", "2001:db8::1"], ["2001:db8::1", "give one IPv4 address"]),
        (["--versions", VERSION, "--allow-from", "me"], ["--allow-from me", "from which this machine reaches"]),
        (["--versions", VERSION, "--project", "/nowhere"], ["/nowhere", "not a lab project", "--project DIR"]),
    ],
)
@pytest.mark.parametrize("verb", ["run", "plan"])
def test_bad_usage(bench, verb, words, parts):
    ended = bench.lab(verb, *words, "--results", str(bench.results))
    assert ended.code == 2
    assert ended.out == ""
    for part in parts:
        assert part in ended.error
    assert bench.steps.calls == []
    assert not bench.results.exists()


def test_a_resumed_run_looks_at_its_places_first(bench):
    ended = bench.lab("run", "--resume", "x", "--results", str(bench.results), "--junit", str(bench.root))
    assert ended.code == 2
    assert f"--junit {bench.root}: that is a folder" in ended.error


def test_a_node_that_is_not_there_is_found_before_anything_is_fetched(bench):
    ended = bench.run("--node", "n-1")
    assert ended.code == 2
    assert ended.error == "no node 'n-1'; there are: none (see `lab nodes`)"
    assert bench.steps.calls == []
    assert not bench.results.exists()


def test_all_cells_are_looked_at_before_anything_is_fetched(bench, monkeypatch):
    def check(cell):
        if cell.version == "v1.37.2":
            raise UsageError(f"{cell.name}: no such gate")

    monkeypatch.setattr(bench.distro, "check", check)
    ended = bench.run(versions="v1.36.3,v1.37.2")
    assert (ended.code, ended.error) == (2, "upstream-v1.37.2: no such gate")
    assert bench.steps.calls == []


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run"], "--versions"),
        (["run", "--versions", VERSION, "--reps", "many"], "--reps"),
        (["run", "--versions", VERSION, "--nodes", "x"], "--nodes"),
        (["measure"], "measure"),
    ],
)
def test_a_command_line_that_cannot_be_read(bench, words, part):
    ended = bench.lab(*words)
    assert ended.code == 2
    assert ended.out == ""
    assert part in ended.err
    assert ended.err.replace("docs/errors.md", "").lower().count("error") == 1
    assert bench.steps.calls == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# nothing\n", 1),
        ("a\n\n```yaml\nid: [unclosed\n```\n", 4),
        ("```yaml\nid: one\nstage: fake\n```\n", 2),
        ("```yaml\nid: x\n", 1),
    ],
)
def test_claims_that_do_not_parse(bench, text, line):
    commit_claims(bench.project, text)
    ended = bench.run()
    assert ended.code == 2
    assert ended.error.startswith(f"CLAIM.md line {line}: ")
    assert bench.steps.calls == []
    assert not bench.results.exists()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_claims_that_cannot_be_read(bench, content):
    path = bench.project / "CLAIM.md"
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    ended = bench.run()
    assert ended.code == 2
    assert str(path) in ended.error
    assert bench.steps.calls == []


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_file_as_results_folder(bench, verb):
    bench.results.write_text("a file\n")
    ended = bench.lab(verb, "--versions", VERSION, "--results", str(bench.results))
    assert ended.code == 2
    assert ended.error.startswith(f"--results {bench.results}: that is a file")
    assert bench.steps.calls == []


def test_a_results_folder_that_cannot_be_made(bench):
    path = bench.results / "_runs"
    path.parent.mkdir(exist_ok=True)
    path.write_text("a file\n")
    ended = bench.run()
    assert ended.code == 4
    assert str(path) in ended.error
    assert "provider.create" not in bench.steps.names()


def test_a_machine_that_refuses_is_one_error(bench):
    bench.steps.fail("distro.files", PermissionError(errno.EACCES, "Permission denied", "/cache/artifacts"))
    ended = bench.run()
    assert ended.code == 5
    assert ended.error.startswith("this machine refused: [Errno 13] Permission denied: '/cache/artifacts'")
    assert not bench.results.exists()


# --- a machine without QEMU, without binaries, with other binaries


def test_missing_qemu_is_found_before_the_image_is_built(bench, monkeypatch):
    tools = bench.root / "bin"
    tools.mkdir()
    (tools / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setitem(PROVIDERS, "qemu", lambda setup: QemuProvider(setup.cache, setup.progress))
    ended = bench.run()
    assert ended.code == 2
    # What the image is built with is named in the same line: one command brings all.
    assert "missing on this machine: " in ended.error
    assert "mmdebstrap, qemu-system-x86, qemu-utils" in ended.error
    assert "mmdebstrap qemu-system-x86 qemu-utils" in ended.error.partition("apt-get install")[2]
    assert not (bench.root / "cache").exists(), "neither an image nor a node was begun"


@pytest.fixture
def real_distro(bench, monkeypatch):
    monkeypatch.setitem(DISTROS, "upstream", make_upstream)
    return bench


def artifact_folder(bench):
    """A folder of two small stand-ins with their sums, and their names."""
    folder = bench.root / "binaries"
    folder.mkdir()
    names = [f"hyperkube-{VERSION}-linux-amd64", f"etcd-{artifacts.load_releases().etcd}-linux-amd64"]
    for name in names:
        (folder / name).write_bytes(b"#!/bin/sh\nexit 0\n" + name.encode())
    sums = "".join(f"{sha256(folder / name)}  {name}\n" for name in names)
    (folder / "SHA256SUMS").write_text(sums)
    return folder, names


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_missing_artifacts(real_distro):
    empty = real_distro.root / "empty"
    empty.mkdir()
    ended = real_distro.run("--artifacts", str(empty), "--no-download", "--no-build")
    assert ended.code == 5
    for part in (
        f"kubernetes {VERSION} could not be had from any source",
        f"{empty} has neither hyperkube-{VERSION}-linux-amd64",
        "downloads are switched off",
        "building is switched off",
        "with --artifacts",
    ):
        assert part in ended.error
    assert real_distro.steps.calls == []
    assert not real_distro.results.exists()


def test_an_artifacts_folder_that_is_not_there(real_distro, monkeypatch):
    ended = real_distro.run("--artifacts", "/nowhere")
    assert (ended.code, ended.error.startswith("--artifacts /nowhere: no such folder")) == (2, True)
    monkeypatch.setenv("LAB_ARTIFACTS", "/nowhere")
    assert real_distro.run().code == 2


@pytest.mark.parametrize("altered", [0, 1])
def test_an_altered_artifact(real_distro, altered, monkeypatch):
    folder, names = artifact_folder(real_distro)
    unpinned = artifacts.Releases(known=(), etcd=artifacts.load_releases().etcd, pins=())
    monkeypatch.setattr(shared, "load_releases", lambda: unpinned)
    path = folder / names[altered]
    before = sha256(path)
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    ended = real_distro.run("--artifacts", str(folder), "--no-download", "--no-build")
    assert ended.code == 5
    for part in (str(path), before, sha256(path), "SHA256SUMS", "altered"):
        assert part in ended.error
    assert real_distro.steps.calls == []
    assert not real_distro.results.exists()


def test_another_build_than_the_pinned_one(real_distro):
    folder, names = artifact_folder(real_distro)
    ended = real_distro.run("--artifacts", str(folder), "--no-download", "--no-build")
    assert ended.code == 5
    assert sha256(folder / names[0]) in ended.error
    assert f"pin for kubernetes {VERSION} in releases.toml" in ended.error
    assert real_distro.steps.calls == []


# --- what a good run prints


def test_output_of_a_run(bench):
    ended = bench.run(versions="v1.36.3,v1.37.2")
    assert ended.code == 0
    assert "Verdicts" in ended.out
    assert ended.out.count("number-one") == 2
    assert ended.out.count("HELD") == 2
    assert "ready on" not in ended.out
    for version in ("v1.36.3", "v1.37.2"):
        assert f"upstream-{version}: stage fake" in ended.err
    assert "share in windows" in ended.err
    assert f"wrote {bench.results / 'summary.md'}" in ended.err
    assert bench.lab("summary", "--check", "--results", str(bench.results)).code == 0


def test_json_is_all_that_stands_on_standard_output(bench):
    (cell,) = bench.run("--json", "--gate", "PodLevelResources=false").json()
    assert cell["cell"] == {"distro": "upstream", "version": VERSION, "gates": ["PodLevelResources=false"]}
    assert [(verdict["claim"], verdict["outcome"]) for verdict in cell["verdicts"]] == [("number-one", "HELD")]
    assert cell["attempts"] == [str(bench.results / "upstream-v1.36.3+PodLevelResources=false/fake/0001")]
    assert set(cell["phases_s"]) == {"boot", "install", "ready", "other", "removal"}
    assert (cell["problem"], cell["kept"]) == (None, None)


def test_a_run_without_a_verdict_shows_no_table(bench):
    bench.steps.fail("distro.install", NodeError("kubelet failed"))
    assert bench.run().out == ""


def test_json_of_a_run_that_failed(bench):
    bench.steps.fail("distro.install", NodeError("kubelet failed"))
    ended = bench.run("--json")
    assert ended.code == 5
    assert ended.json()[0]["problem"] == "kubelet failed"
    assert ended.error == "kubelet failed"


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["1"], 0),
        (["5"], 0),
        (["2"], 1),
        (["no number"], 3),
        (["1", "2"], 1),
        (["1", "no number"], 3),
        (["2", "no number"], 1),
    ],
)
def test_exit_code_by_verdicts(bench, texts, code):
    numbers = iter(texts)
    bench.use_stages(fake_stage(collect=lambda context: context.save("number.txt", next(numbers))))
    ended = bench.run(versions="v1.36.3,v1.37.2" if len(texts) == 2 else VERSION)
    assert ended.code == code
    assert bench.lab("summary", "--results", str(bench.results)).code == code


def test_a_long_reason_is_not_cut_and_is_not_taken_for_markup(bench):
    text = "[/x] [red]" + "y" * 150
    bench.use_stages(fake_stage(parse=lambda raw: {"number": int(text)}))
    ended = bench.run()
    assert ended.code == 3
    assert text in ended.out
    assert "…" not in ended.out


def test_a_narrow_terminal_folds_a_table_and_cuts_nothing(monkeypatch):
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, color_system=None, width=24, soft_wrap=True)
    monkeypatch.setattr(console, "data_console", terminal)
    console.print_table("T", ["one", "two"], [["abcdefghijklmnop", "qrstuvwxyz0123456789"]])
    rows = [line for line in file.getvalue().splitlines() if line.startswith("│")]
    assert "".join(row.split("│")[1].strip() for row in rows) == "abcdefghijklmnop"
    assert "".join(row.split("│")[2].strip() for row in rows) == "qrstuvwxyz0123456789"
    assert max(len(line) for line in file.getvalue().splitlines()) <= 24


def test_stages_are_chosen_in_running_order(bench):
    bench.use_stages(fake_stage("fake"), fake_stage("two"), fake_stage("three"))
    bench.run("--stages", "three, fake")
    assert [attempt.stage for attempt in bench.store.attempts()] == ["fake", "three"]


def test_results_of_two_stamps_are_stored_and_not_summed(bench):
    assert bench.run("--reps", "3").code == 0
    before = (bench.results / "summary.md").read_text()
    ended = bench.run("--reps", "5", versions="v1.37.2")
    assert ended.code == 4
    assert "param/reps: 3, latest 5" in ended.error
    assert len(bench.store.attempts()) == 2
    assert (bench.results / "summary.md").read_text() == before


# --- plan


def test_plan_touches_nothing(bench):
    before = tree(bench.root)
    words = ("plan", "--versions", "v1.36.3,v1.37.2", "--gate-leg", "v1.37.2:A=false", "--results", str(bench.results))
    ended = bench.lab(*words)
    assert ended.code == 0
    assert ended.out.count("fake") >= 3
    assert "3 node(s) from qemu, about 7.0 minutes" in ended.out
    data = bench.lab(*words, "--json").json()
    assert (data["nodes"], data["minutes"], data["provider"]) == (3, 7.0, "qemu")
    assert [entry["cell"] for entry in data["attempts"]] == [
        "upstream-v1.36.3",
        "upstream-v1.37.2",
        "upstream-v1.37.2+A=false",
    ]
    assert data["attempts"][0]["folder"] == f"{bench.results}/upstream-v1.36.3/fake/"
    quick = bench.lab(*words, "--json", "--quick").json()
    assert quick["attempts"][0]["folder"] == f"{bench.results}/_smoke/upstream-v1.36.3/fake/"
    assert tree(bench.root) == before
    assert bench.steps.calls == []


def test_plan_shows_the_stamps_that_a_run_stores(bench):
    (entry,) = bench.lab("plan", "--versions", VERSION, "--reps", "5", "--json").json()["attempts"]
    bench.run("--reps", "5")
    assert entry["stamp"] == bench.store.attempts()[0].stamp.digest[:12]


# --- the program in a process of its own


def test_help_names_every_verb(bench):
    ended = program(bench, "--help", script="import runpy; runpy.run_module('lab', run_name='__main__')")
    assert ended.returncode == 0
    for command in app.registered_commands:
        assert command.name is not None
        assert f" {command.name} " in ended.stdout
    assert COLOUR not in ended.stdout


def test_errors_of_a_process(bench):
    ended = program(bench, "run", "--versions", VERSION, "--gate", "x")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: --gate 'x' is not NAME=true")
    assert "Traceback" not in ended.stderr
    assert COLOUR not in ended.stderr


@pytest.mark.parametrize("broken", ["full", "closed"])
def test_standard_error_that_cannot_be_written_does_not_decide_the_exit_code(bench, broken):
    bench.run()
    bench.use_stages()
    words = ("verify", "--results", str(bench.results))
    if broken == "full":
        with open("/dev/full", "w") as full:
            assert program(bench, *words, capture_output=False, stderr=full, stdout=subprocess.PIPE).returncode == 0
    else:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as gone:
            assert program(bench, *words, capture_output=False, stderr=gone, stdout=subprocess.PIPE).returncode == 0


# --- secrets


def encodings(secret):
    """A secret as it is, and every way base64 can show it."""
    forms = {secret}
    for shift in range(3):
        forms.add(base64.b64encode(b"x" * shift + secret.encode())[4:-4].decode())
    return forms


def test_a_failing_upload_shows_no_secret(bench):
    secret = secrets.token_hex(24)
    host = FakeHost("node-1")
    host.answer(UNPACK, Reply(status=2, stderr="tar: write error: No space left on device\n"))
    bench.steps.during("distro.install", lambda: put_texts(host, {"/etc/lab/reader.key": (secret, 0o600)}))
    ended = bench.run("--json")
    assert ended.code == 5
    assert "No space left on device" in ended.error
    sent = base64.b64decode(host.commands[0].stdin)
    assert secret.encode() in sent, "the secret did travel"
    stored = b"".join(tree(bench.results).values()).decode()
    for form in encodings(secret):
        assert form not in ended.out + ended.err + stored


def test_verbose_shows_commands_and_no_secret(bench, tmp_path):
    """`-v` logs every command of a real SSH connection, those that fail included."""
    secret = secrets.token_hex(24)
    server = SshServer(tmp_path / "server").start()
    host = SshHost(server.address(), "node-1")

    def install():
        host.put_text(secret, str(tmp_path / "server" / "reader.key"), mode=0o600)
        host.put_text(secret, "/proc/no/such/place", mode=0o600)

    bench.steps.during("distro.install", install)
    root = logging.getLogger()
    stream, before, handlers = io.StringIO(), root.level, root.handlers[:]
    root.handlers[:] = []
    bench.monkeypatch.setattr(sys, "stderr", stream)
    try:
        # basicConfig takes sys.stderr as it is when the program starts.
        ended = bench.lab("-v", "run", "--versions", VERSION, "--results", str(bench.results))
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(before)
        host.close()
        server.stop()
    shown = ended.out + ended.err + stream.getvalue()
    assert ended.code == 5
    assert (tmp_path / "server" / "reader.key").read_text() == secret
    assert "DEBUG node-1: exit 0" in shown
    assert "/proc/no/such/place" in shown
    for form in encodings(secret):
        assert form not in shown


# --- a disk that is full


def fill_disk(monkeypatch, at):
    """From the ``at``-th write on, counted from 1, nothing can be made durable; returns the counter."""
    calls = {"n": 0}
    real = os.fsync

    def fsync(descriptor):
        calls["n"] += 1
        if calls["n"] >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def test_a_full_disk_at_any_write_is_named_and_leaves_no_node(bench, monkeypatch):
    with monkeypatch.context() as patch:
        writes = fill_disk(patch, 10**9)
        assert bench.run().code == 0
    assert writes["n"] > 20
    seen = set()
    for at in [*range(1, writes["n"] + 1, 3), writes["n"]]:
        attempts = [attempt.path for attempt in bench.store.attempts()]
        before = set(bench.store.partials())
        with monkeypatch.context() as patch:
            fill_disk(patch, at)
            ended = bench.run(versions="v1.36.3,v1.37.2")
        assert ended.code == 4, at
        assert "No space left on device" in ended.err, at
        assert "free space on that disk" in ended.err, at
        new = set(bench.store.partials()) - before
        for folder in new:
            if sorted(path.name for path in folder.glob("raw/*")):
                assert f"are kept in {folder}; free space" in ended.err, at
                seen.add("kept")
        assert len(bench.provider.specs) == len({spec.run_id for spec in bench.provider.specs})
        assert bench.provider.alive == {}
        assert set(attempts) <= {attempt.path for attempt in bench.store.attempts()}
    assert seen == {"kept"}
    assert bench.store.verify() == []


def test_a_full_disk_while_a_text_is_saved_ends_the_run(bench):
    def collect(context):
        context.save("number.txt", "1")
        raise ResultsError(f"cannot write x; 1 raw texts (1 bytes) are kept in {bench.root}")

    bench.use_stages(fake_stage("fake", collect=collect), fake_stage("other"))
    ended = bench.run(versions="v1.36.3,v1.37.2")
    assert ended.code == 4
    assert "1 raw texts (1 bytes) are kept in" in ended.err
    assert "upstream-v1.37.2 was not started: results of upstream-v1.36.3 could not be stored" in ended.err
    assert bench.store.attempts() == []
    assert len(bench.provider.specs) == 1
