"""Artifacts from a folder, the cache and a build, and what happens to a file that is not the right one."""

from __future__ import annotations

import json
import lzma
import multiprocessing
import os
import stat
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.artifacts import (
    KUBERNETES_COMPONENTS,
    Pin,
    Request,
    Sources,
    WrongHash,
    add_pin,
    describe_origin,
    load_releases,
    resolve,
    resolve_upstream,
)
from lab.artifacts.files import Unavailable, parse_sums
from lab.model import EXIT_NODE, EXIT_USAGE, NodeError, UsageError
from tests.artifacts_bench import (
    BODY,
    KUBERNETES,
    VERSION,
    built,
    left_in,
    must_not_build,
    quiet,
    releases,
    sha,
    sources,
)

NAME = f"hyperkube-{VERSION}-linux-amd64"


def pin(component="hyperkube", content=BODY, origin="module-build", kind="kubernetes", version=VERSION):
    return Pin(kind=kind, version=version, component=component, arch="linux-amd64", sha256=sha(content), origin=origin)


@pytest.fixture
def folder(tmp_path):
    result = tmp_path / "given"
    result.mkdir()
    return result


def give(folder, *, packed=True, sums=True, content=BODY, name=NAME):
    """One executable in an artifacts folder, with its lines in SHA256SUMS."""
    files = {f"{name}.xz": lzma.compress(content)} if packed else {name: content}
    for file_name, data in files.items():
        (folder / file_name).write_bytes(data)
    if sums:
        lines = files | {name: content}
        with (folder / "SHA256SUMS").open("a") as stream:
            stream.writelines(f"{sha(data)}  {file_name}\n" for file_name, data in lines.items())


# ----- artifacts folder and cache -----


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("sums", [True, False])
def test_multi_call_binary_from_a_folder_then_from_the_cache(tmp_path, folder, packed, sums):
    give(folder, packed=packed, sums=sums)
    options = sources(tmp_path, pin(), folder=folder)
    first = resolve(KUBERNETES, options, quiet)
    assert (first.origin, first.first_origin) == ("artifacts", "artifacts")
    assert first.detail.endswith("; pinned")
    assert set(first.components) == set(KUBERNETES_COMPONENTS)
    for name, path in first.components.items():
        assert path.name == name
        assert path.is_absolute()
        assert path.is_symlink()
        assert path.read_bytes() == BODY
        assert os.access(path, os.X_OK)
        assert first.sha256[name] == sha(BODY)
    assert left_in(tmp_path) == [KUBERNETES.name]
    lines = []
    again = resolve(KUBERNETES, options, lines.append)
    assert (again.origin, again.first_origin) == ("cache", "artifacts")
    assert (again.components, again.sha256, again.detail) == (first.components, first.sha256, first.detail)
    assert any("was not consulted" in line for line in lines)
    for entry in folder.iterdir():
        entry.unlink()
    assert resolve(KUBERNETES, sources(tmp_path), quiet).origin == "cache"


def test_record_of_a_cache_entry(tmp_path, folder):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    record = json.loads((tmp_path / "cache" / "artifacts" / KUBERNETES.name / "record.json").read_text())
    assert record["sha256"] == {"hyperkube": sha(BODY)}
    assert record["components"] == dict.fromkeys(KUBERNETES_COMPONENTS, "hyperkube")
    assert (record["first_origin"], record["pin_origin"]) == ("artifacts", "module-build")
    assert record["detail"].endswith("not pinned")


def test_separate_official_binaries_in_a_version_folder(tmp_path, folder):
    (folder / VERSION).mkdir()
    contents = {name: name.encode() for name in KUBERNETES_COMPONENTS}
    for name, content in contents.items():
        (folder / VERSION / name).write_bytes(content)
    found = resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    assert found.sha256 == {name: sha(content) for name, content in contents.items()}
    assert not any(path.is_symlink() for path in found.components.values())
    (folder / VERSION / "kubectl").unlink()
    (tmp_path / "cache").rename(tmp_path / "old")
    with pytest.raises(NodeError, match=f"{VERSION}/kubectl"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)


def test_a_sums_file_must_list_separate_binaries_too(tmp_path, folder):
    (folder / VERSION).mkdir()
    for name in KUBERNETES_COMPONENTS:
        (folder / VERSION / name).write_bytes(name.encode())
    lines = [f"{sha(name.encode())}  {VERSION}/{name}\n" for name in KUBERNETES_COMPONENTS]
    (folder / "SHA256SUMS").write_text("".join(lines[:-1]))
    with pytest.raises(NodeError, match=r"has no line for v1\.36\.9/kubectl"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    (folder / "SHA256SUMS").write_text("".join(lines))
    assert resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet).origin == "artifacts"


@pytest.mark.parametrize("suffix", [".xz", ""])
def test_missing_sums_entry_stops(tmp_path, folder, suffix):
    give(folder)
    path = folder / "SHA256SUMS"
    path.write_text("".join(x for x in path.read_text().splitlines(True) if not x.endswith(f"{NAME}{suffix}\n")))
    with pytest.raises(NodeError, match=f"has no line for {NAME}{suffix};") as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    assert not isinstance(caught.value, Unavailable)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(("suffix", "content"), [(".xz", lzma.compress(BODY)), ("", BODY)])
def test_wrong_sums_entry_stops_and_shows_both_hashes(tmp_path, folder, suffix, content):
    give(folder)
    path = folder / "SHA256SUMS"
    wrong = "0" * 64
    path.write_text(path.read_text().replace(f"{sha(content)}  {NAME}{suffix}\n", f"{wrong}  {NAME}{suffix}\n"))
    with pytest.raises(WrongHash) as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    text = str(caught.value)
    assert (wrong in text, sha(content) in text, f"{folder / NAME}.xz" in text) == (True, True, True)
    assert caught.value.exit_code == EXIT_NODE
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("sums", [True, False])
def test_altered_xz_stops(tmp_path, folder, sums):
    give(folder, sums=sums)
    path = folder / f"{NAME}.xz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(NodeError, match="sha256 is" if sums else "not a whole .xz file"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    assert left_in(tmp_path) == []


def test_truncated_xz_stops(tmp_path, folder):
    give(folder, sums=False)
    path = folder / f"{NAME}.xz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(NodeError, match=r"not a whole \.xz file"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)


def test_folder_file_against_its_pin(tmp_path, folder):
    give(folder)
    with pytest.raises(WrongHash, match=r"module-build pin for kubernetes v1\.36\.9") as caught:
        resolve(KUBERNETES, sources(tmp_path, pin(content=b"else"), folder=folder, builder=must_not_build), quiet)
    assert (caught.value.expected, caught.value.actual) == (sha(b"else"), sha(BODY))


def entry(tmp_path):
    return tmp_path / "cache" / "artifacts" / KUBERNETES.name


def test_altered_cache_entry_stops(tmp_path, folder):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    path = entry(tmp_path) / "files" / "hyperkube"
    path.write_bytes(BODY + b"x")
    with pytest.raises(WrongHash) as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    assert str(path) in str(caught.value)
    assert f"remove {entry(tmp_path)}" in str(caught.value)
    assert (caught.value.expected, caught.value.actual) == (sha(BODY), sha(BODY + b"x"))


def test_cached_folder_file_is_held_to_a_later_pin_but_an_own_build_is_not(tmp_path, folder):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    with pytest.raises(WrongHash, match="module-build pin"):
        resolve(KUBERNETES, sources(tmp_path, pin(content=b"else")), quiet)
    (tmp_path / "cache").rename(tmp_path / "old")
    options = sources(tmp_path, builder=built())
    assert resolve(KUBERNETES, options, quiet).origin == "build"
    again = resolve(KUBERNETES, options, quiet)
    assert (again.origin, again.first_origin, again.detail) == ("cache", "build", "built here")


def swap_link(root):
    (root / "files" / "kubelet").unlink()
    (root / "files" / "kubelet").symlink_to("/bin/true")


def fake_record(**changes):
    def change(root):
        path = root / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        swap_link,
        lambda root: (root / "files" / "kubelet").unlink(),
        lambda root: (root / "files" / "hyperkube").unlink(),
        lambda root: (root / "files" / "hyperkube").chmod(0o644),
        lambda root: (root / "record.json").unlink(),
        lambda root: (root / "record.json").write_text("{"),
        lambda root: (root / "record.json").write_text("[]"),
        fake_record(version="v1.36.8"),
        fake_record(sha256={}),
        fake_record(sha256={"../../x": "0" * 64}, components=dict.fromkeys(KUBERNETES_COMPONENTS, "../../x")),
        fake_record(components={"kubelet": "hyperkube"}),
        fake_record(detail=None),
        fake_record(pin_origin=3),
    ],
)
def test_damaged_cache_entry_is_an_error_never_another_source(tmp_path, folder, damage):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    damage(entry(tmp_path))
    with pytest.raises(NodeError, match=r"cache|remove|cannot be read"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)


def test_left_over_staging_of_a_killed_run_goes(tmp_path, folder):
    give(folder)
    dead = tmp_path / "cache" / "artifacts" / f".{KUBERNETES.name}-dead"
    (dead / "files").mkdir(parents=True)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    assert left_in(tmp_path) == [KUBERNETES.name]


def test_nothing_works_lists_every_source_and_what_to_do(tmp_path, folder):
    def broken(request, output, progress):
        raise NodeError("no Go 1.26")

    with pytest.raises(NodeError) as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=broken), quiet)
    text = str(caught.value)
    for part in ("cache: ", f"artifacts folder: {folder}", "download: downloads are switched off", "build: no Go 1.26"):
        assert part in text
    assert "--artifacts" in text.splitlines()[-1]
    assert left_in(tmp_path) == []


def test_a_builder_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(NodeError, match="without writing hyperkube"):
        resolve(KUBERNETES, sources(tmp_path, builder=lambda request, output, progress: "done"), quiet)


def test_an_interrupted_build_leaves_no_entry(tmp_path):
    def interrupted(request, output, progress):
        output.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(KUBERNETES, sources(tmp_path, builder=interrupted), quiet)
    assert left_in(tmp_path) == []
    assert resolve(KUBERNETES, sources(tmp_path, builder=built()), quiet).origin == "build"


def test_upstream_joins_both(tmp_path, folder):
    give(folder)
    options = sources(tmp_path, folder=folder, builder=built(b"etcd"))
    found = resolve_upstream(VERSION, options, quiet)
    assert set(found.components) == {*KUBERNETES_COMPONENTS, "etcd"}
    assert found.sha256["etcd"] == sha(b"etcd")
    assert found.origin == "kubernetes artifacts, etcd build"
    again = resolve_upstream(VERSION, options, quiet)
    assert (again.origin, again.first_origin) == ("cache", found.origin)
    assert describe_origin(again).startswith("cache (first: kubernetes artifacts, etcd build): kubernetes v1.36.9: ")


# ----- two runs at once -----


def _one_run(root, number, results):
    def builder(request, output, progress):
        with (root / "builds").open("a") as stream:
            stream.write("one\n")
        output.write_bytes(BODY)
        return f"by {number}"

    found = resolve(KUBERNETES, sources(root, builder=builder), quiet)
    results.put((found.origin, found.detail, found.sha256["kubelet"]))


def test_two_processes_build_once(tmp_path):
    releases(tmp_path)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    runs = [context.Process(target=_one_run, args=(tmp_path, number, results)) for number in range(2)]
    for process in runs:
        process.start()
    answers = sorted(results.get(timeout=60) for _ in runs)
    for process in runs:
        process.join(60)
        assert process.exitcode == 0
    assert (tmp_path / "builds").read_text() == "one\n"
    assert [origin for origin, _, _ in answers] == ["build", "cache"]
    assert len({(detail, digest) for _, detail, digest in answers}) == 1


def test_a_lock_that_never_comes_free_is_an_error(tmp_path):
    inside = []

    def builder(request, output, progress):
        with pytest.raises(NodeError, match=r"held by another run for over 0\.1 s"):
            resolve(KUBERNETES, sources(tmp_path, builder=must_not_build, lock_timeout_s=0.1), inside.append)
        output.write_bytes(BODY)
        return "built"

    assert resolve(KUBERNETES, sources(tmp_path, builder=builder), quiet).origin == "build"
    assert inside == ["kubernetes v1.36.9: another run is preparing it; waiting"]


# ----- requests, sources, pins -----


@pytest.mark.parametrize(
    ("kind", "version", "message"),
    [
        ("kubernetes", "v1.33.99", "the oldest is v1.34.0"),
        ("kubernetes", "1.36.3", "not of the form"),
        ("kubernetes", "v1.36", "not of the form"),
        ("kubernetes", "v1.36.3+k3s1", "belongs to k3s"),
        ("kubernetes", "v1.36.3/../..", "not of the form"),
        ("etcd", "v1.36.3", "not of the form"),
        ("etcd", "3.6.16", "not of the form"),
        ("etcd", "v3.6.16\n", "not of the form"),
        ("rke2", "v1.36.3", "unknown"),
    ],
)
def test_bad_requests(kind, version, message):
    with pytest.raises(UsageError, match=message) as caught:
        Request(kind=kind, version=version)
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("version", ["v1.34.0", "v1.99.0"])
def test_versions_from_1_34_on_are_taken(version):
    assert Request(kind="kubernetes", version=version).name == f"kubernetes-{version}-linux-amd64"


def test_sources_from_the_environment(tmp_path, folder):
    known = releases(tmp_path)
    environ = {"LAB_ARTIFACTS": str(folder), "LAB_KUBERNETES_MIRROR": "http://mirror.example/k"}
    found = Sources.from_environment(environ, cache=tmp_path, releases=known)
    assert (found.folder, found.kubernetes_mirror) == (folder, "http://mirror.example/k")
    assert found.etcd_mirror.startswith("https://")
    given = Sources.from_environment(environ, cache=tmp_path, releases=known, folder=tmp_path)
    assert given.folder == tmp_path
    assert Sources.from_environment({"LAB_ARTIFACTS": ""}, cache=tmp_path, releases=known).folder is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LAB_ARTIFACTS": "/nowhere/at/all"}, "^LAB_ARTIFACTS=/nowhere/at/all: no such folder"),
        ({"LAB_KUBERNETES_MIRROR": "ftp://mirror.example"}, "not a URL"),
        ({"LAB_ETCD_MIRROR": "mirror.example"}, "not a URL"),
    ],
)
def test_bad_sources(tmp_path, environ, message):
    with pytest.raises(UsageError, match=message):
        Sources.from_environment(environ, cache=tmp_path, releases=releases(tmp_path))


def test_packaged_releases():
    known = load_releases()
    assert known.known == ("v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2")
    for version in known.known:
        assert known.find(Request(kind="kubernetes", version=version), "hyperkube", "module-build") is not None
    etcd = known.find(Request(kind="etcd", version=known.etcd), "etcd", "module-build")
    assert etcd is not None
    assert etcd.sha256 == "09a599aa450e0164efc706e7bd5802c4d276a6c8a6798fdf3a858a52058b6eef"
    assert known.find(Request(kind="etcd", version=known.etcd), "etcd", "official") is None


def test_adding_pins(tmp_path):
    first, other = pin(), pin(origin="official")
    assert releases(tmp_path, first).pins == (first,)
    path = tmp_path / "releases.toml"
    path.chmod(0o640)
    text = path.read_text()
    assert add_pin(path, first) is False
    assert path.read_text() == text
    assert add_pin(path, other) is True
    assert path.read_text().startswith(text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert load_releases(path).pins == (first, other)
    with pytest.raises(UsageError) as caught:
        add_pin(path, pin(content=b"changed"))
    assert sha(BODY) in str(caught.value)
    assert sha(b"changed") in str(caught.value)
    assert load_releases(path).pins == (first, other)
    assert [item.name for item in tmp_path.iterdir()] == ["releases.toml"]


def test_adding_a_pin_to_a_file_without_a_last_line_end(tmp_path):
    path = tmp_path / "releases.toml"
    path.write_text('[upstream]\nknown = []\netcd = "v3.6.99"')
    add_pin(path, pin())
    assert load_releases(path).pins == (pin(),)


@given(
    st.builds(
        Pin,
        kind=st.sampled_from(["kubernetes", "etcd"]),
        version=st.from_regex(r"v[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}", fullmatch=True),
        component=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,20}", fullmatch=True),
        arch=st.just("linux-amd64"),
        sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
        origin=st.sampled_from(["module-build", "official"]),
    )
)
def test_pin_written_is_pin_read(value):
    assert Pin(**tomllib.loads(value.as_toml())["pin"][0]) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sha256", "0" * 63),
        ("sha256", "A" * 64),
        ("sha256", 3),
        ("sha256", "0" * 64 + "\n"),
        ("origin", "cache"),
        ("component", "a/b"),
        ("component", 'a"b'),
        ("component", "a\n"),
        ("version", ""),
        ("kind", None),
    ],
)
def test_malformed_pins(field, value):
    good = {
        "kind": "kubernetes",
        "version": VERSION,
        "component": "kubelet",
        "arch": "linux-amd64",
        "sha256": "0" * 64,
        "origin": "official",
    }
    with pytest.raises(UsageError, match=field):
        Pin(**(good | {field: value}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "cannot be read"),
        ("", r"\[upstream\]"),
        ('[upstream]\nknown = "v1.36.3"\netcd = "v3.6.16"\n', "known"),
        ('[upstream]\nknown = ["v1.2.3"]\netcd = "v3.6.16"\n', "too old"),
        ("[upstream]\nknown = []\n", "None"),
        ('pin = [3]\n[upstream]\nknown = []\netcd = "v3.6.16"\n', "needs exactly"),
        ('[upstream]\nknown = []\netcd = "v3.6.16"\n[[pin]]\nkind = "etcd"\n', "needs exactly"),
        ('[upstream]\nknown = []\netcd = "v3.6.16"\n' + pin().as_toml() * 2, "two pins"),
    ],
)
def test_malformed_releases(tmp_path, text, message):
    path = tmp_path / "releases.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_releases(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc  file\n", "abc  file"),
        (f"{'0' * 64}  f\n{'1' * 64}  f\n", "two different hashes"),
        ("0" * 64, "not a line"),
    ],
)
def test_malformed_sums(text, message):
    with pytest.raises(NodeError, match=message):
        parse_sums(text, "SHA256SUMS")


def test_forms_of_sums():
    text = f"{'AB' * 32}  ./a\n\n{'01' * 32} *b c\n{'01' * 32}  b c\n"
    assert parse_sums(text, "x") == {"a": "ab" * 32, "b c": "01" * 32}
