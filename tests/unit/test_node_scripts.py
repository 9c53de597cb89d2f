"""The programs that run on a node, as far as they can run here: what they share, the image, cgroups and signals."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab import cgroups
from lab.parse.lines import of_kind, records
from lab.stages import registry
from tests.node_programs import BURSTABLE, ESCAPED, NAMES, NO_PROCESS, SCRIPTS, UID


def test_every_program_that_a_stage_names_is_there():
    for stage in registry.STAGES:
        for name in stage.scripts:
            assert (SCRIPTS / name).is_file(), f"{stage.name} names {name}"


def test_the_programs_use_the_standard_library_and_each_other_alone():
    for path in SCRIPTS.glob("*.py"):
        lines = [line.split() for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
        imported = {words[1].split(".")[0] for words in lines}
        assert imported - set(NAMES) <= sys.stdlib_module_names, path.name


# --- labnode ----------------------------------------------------------------------------------------------------------


def test_emit_writes_one_whole_line_with_the_time(scripts, capsys, monkeypatch):
    monkeypatch.setattr(scripts.labnode.time, "time", lambda: 12.34567)
    scripts.labnode.emit("start", program="x", text="two\nlines", nothing=None)

    out = capsys.readouterr().out
    assert out == '{"kind": "start", "nothing": null, "program": "x", "t": 12.346, "text": "two\\nlines"}\n'


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("usage_usec 12\nuser_usec 3", "usage_usec", 12),
        ("usage_usec 12\nuser_usec 3", "user_usec", 3),
        ("oom 5\noom_kill 0\noom_group_kill 7", "oom_kill", 0),
        ("oom_kill_x 1", "oom_kill", None),
        ("usage_usec", "usage_usec", None),
        ("usage_usec 1 2", "usage_usec", None),
        ("", "usage_usec", None),
        (None, "usage_usec", None),
    ],
)
def test_keyed_reads_a_flat_keyed_file(scripts, text, key, value):
    assert scripts.labnode.keyed(text, key) == value


def test_pairs_splits_at_the_first_equals_sign_alone(scripts):
    assert scripts.labnode.pairs(["a=1", "url=https://x/?y=z", "empty="]) == {
        "a": "1",
        "url": "https://x/?y=z",
        "empty": "",
    }
    with pytest.raises(ValueError, match="length 1"):
        scripts.labnode.pairs(["no-value"])


def test_read_gives_the_text_without_its_last_newline(scripts, tmp_path):
    file = tmp_path / "cpu.max"
    file.write_text("max 100000\n")

    assert scripts.labnode.read(str(file)) == "max 100000"
    file.write_bytes(b"\xff\n")
    assert scripts.labnode.read(str(file)) == "\ufffd"


def test_read_of_what_is_not_there_is_none_and_not_empty(scripts, tmp_path):
    (tmp_path / "file").write_text("")

    assert scripts.labnode.read(str(tmp_path / "absent")) is None
    assert scripts.labnode.read(str(tmp_path / "file" / "below-a-file")) is None
    assert scripts.labnode.read(f"/proc/{NO_PROCESS}/stat") is None
    assert scripts.labnode.read(str(tmp_path / "file")) == ""


@pytest.mark.parametrize(("number", "gone"), [(19, True), (95, True), (5, False), (13, False)])
def test_read_takes_a_cgroup_that_is_being_removed_for_gone_and_no_other_error(scripts, monkeypatch, number, gone):
    def fail(path: str, errors: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(scripts.labnode, "open", fail, raising=False)

    with contextlib.nullcontext() if gone else pytest.raises(OSError, match=os.strerror(number)):
        assert scripts.labnode.read("/sys/fs/cgroup/x") is None


@pytest.mark.parametrize(
    "path",
    [
        BURSTABLE,
        f"kubepods.slice/kubepods-pod{ESCAPED}.slice",
        f"kubepods/burstable/pod{UID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-pod{ESCAPED}.slice",
    ],
    ids=["burstable", "guaranteed", "cgroupfs", "kind"],
)
def test_a_pods_cgroup_is_found_by_its_uid_in_either_spelling(scripts, tree, path):
    tree("system.slice/containerd.service")
    tree("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podaaaa.slice/cri-containerd-1.scope")
    folder = tree(path)
    tree(f"{path}/cri-containerd-2.scope")

    assert scripts.labnode.pod_cgroup(UID) == folder


def test_a_pod_without_a_cgroup_is_none(scripts, tree):
    tree("kubepods.slice/kubepods-burstable.slice")
    tree(f"system.slice/pod{UID}")

    assert scripts.labnode.pod_cgroup(UID) is None


def test_containers_and_processes_of_a_pod(scripts, tree):
    pod = tree(BURSTABLE, cgroup_procs="")
    first = tree(f"{BURSTABLE}/cri-containerd-b.scope", cgroup_procs="31\n32")
    second = tree(f"{BURSTABLE}/cri-containerd-a.scope", cgroup_procs="41")
    tree(f"{BURSTABLE}/cri-containerd-a.scope/nested", cgroup_procs="42")

    assert scripts.labnode.container_cgroups(pod) == [second, first]
    assert sorted(scripts.labnode.processes(pod)) == [31, 32, 41, 42]
    assert scripts.labnode.processes(f"{pod}-gone") == []


def test_meminfo_of_this_machine_and_of_a_key_that_is_not_there(scripts):
    assert scripts.labnode.meminfo_kib("MemTotal") > 0
    assert scripts.labnode.meminfo_kib("Mem") is None


def test_pod_memory_of_a_pod_and_of_one_that_is_gone(scripts, tree):
    there = tree("a", memory_current="4096", memory_stat="anon 1\ninactive_file 512")
    bare = tree("b", memory_current="8192")

    assert scripts.labnode.pod_memory({"a": there, "b": bare, "c": f"{bare}-gone"}) == {
        "a": {"current": 4096, "inactive_file": 512},
        "b": {"current": 8192, "inactive_file": None},
        "c": None,
    }


def summary(**pods: dict[str, Any] | None) -> dict[str, Any]:
    """The kubelet's answer in the form of its API (k8s.io/kubelet/pkg/apis/stats/v1alpha1, Summary)."""
    entries = [
        {"podRef": {"name": name, "namespace": "lab"}, **({} if memory is None else {"memory": memory})}
        for name, memory in pods.items()
    ]
    node = {"memory": {"time": "T0", "availableBytes": 7, "workingSetBytes": 8, "usageBytes": 9}}
    return {"node": node, "pods": entries}


def test_condense_keeps_working_sets_and_their_times(scripts):
    found = scripts.labnode.condense(summary(a={"time": "T1", "workingSetBytes": 5, "rssBytes": 4}, b=None, c={}))

    assert found == {
        "available": 7,
        "working_set": 8,
        "time": "T0",
        "pods": {"lab/a": 5, "lab/b": None, "lab/c": None},
        "times": {"lab/a": "T1", "lab/b": None, "lab/c": None},
    }


def test_condense_of_a_node_without_pods(scripts):
    assert scripts.labnode.condense({**summary(), "pods": None})["pods"] == {}


class Connection:
    """The part of an HTTPS connection that the summary reader uses."""

    def __init__(self, *answers: tuple[int, bytes] | Exception) -> None:
        self.answers = list(answers)

    def request(self, method: str, path: str) -> None:
        assert (method, path) == ("GET", "/stats/summary?only_cpu_and_memory=true")

    def getresponse(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(status=answer[0], read=lambda: answer[1])


def reader(scripts: SimpleNamespace, connection: Connection) -> Any:
    """A summary reader whose connection is there already (its certificates are the node's)."""
    made = object.__new__(scripts.labnode.Summary)
    made._connection = connection
    return made


def test_the_summary_reader_gives_an_error_text_and_no_figures(scripts):
    kept = reader(scripts, Connection((503, b"busy"), (200, json.dumps(summary(a={"workingSetBytes": 5})).encode())))

    assert kept.read() == {"error": "status 503"}
    assert kept.read()["pods"] == {"lab/a": 5}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ConnectionResetError("gone"), "ConnectionResetError: gone"),
        ((200, b"no json"), "JSONDecodeError"),
        ((200, b"{}"), "KeyError: 'node'"),
    ],
)
def test_the_summary_reader_drops_a_connection_that_failed(scripts, answer, error):
    broken = reader(scripts, Connection(answer))

    assert broken.read()["error"].startswith(error)
    assert broken._connection is None


# --- oci_image --------------------------------------------------------------------------------------------------------

BUSYBOX = b"\x7fELF not really a program\n" * 40


def members(content: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: member for member in tar}


def file_of(content: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        file = tar.extractfile(name)
        assert file is not None, name
        return file.read()


def test_the_image_depends_on_the_program_alone(scripts):
    first, second = scripts.oci_image.archive(BUSYBOX), scripts.oci_image.archive(bytes(BUSYBOX))

    assert first == second
    assert scripts.oci_image.archive(BUSYBOX + b"x")[1] != first[1]
    assert {member.mtime for member in members(first[0]).values()} == {0}


def test_the_image_is_an_oci_layout_whose_digests_and_sizes_match(scripts):
    content, digest = scripts.oci_image.archive(BUSYBOX)
    blobs = {name.rpartition("/")[2]: file_of(content, name) for name in members(content) if name.startswith("blobs/")}

    def blob(entry: dict[str, Any]) -> bytes:
        found = blobs[entry["digest"].removeprefix("sha256:")]
        assert len(found) == entry["size"]
        return found

    assert json.loads(file_of(content, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in blobs.items())
    index = json.loads(file_of(content, "index.json"))
    [entry] = index["manifests"]
    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    [layer] = manifest["layers"]
    assert digest == entry["digest"]
    assert index["schemaVersion"] == manifest["schemaVersion"] == 2
    assert entry["mediaType"] == manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert entry["annotations"]["io.containerd.image.name"] == "lab.local/busybox:1"
    assert config["rootfs"] == {"type": "layers", "diff_ids": [layer["digest"]]}
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert len(blobs) == 3
    assert blob(layer) == scripts.oci_image.layer(BUSYBOX)


def test_the_layer_holds_the_program_and_a_link_for_every_word_that_a_pod_runs(scripts):
    content = scripts.oci_image.layer(BUSYBOX)
    found = members(content)

    assert file_of(content, "bin/busybox") == BUSYBOX
    assert found["bin/busybox"].mode == 0o755
    for applet in ("sh", "sleep", "dd"):
        assert (found[f"bin/{applet}"].issym(), found[f"bin/{applet}"].linkname) == (True, "busybox")
    assert all(found[name].isdir() for name in ("dev", "etc", "proc", "sys", "tmp"))


# --- pod_cgroups ------------------------------------------------------------------------------------------------------

FILES = {
    "cpu_weight": "4",
    "cpu_max": "50000 100000",
    "memory_max": "max",
    "memory_min": "0",
    "memory_low": "0",
    "memory_high": "max",
    "memory_swap_max": "max",
}


def test_pod_cgroups_reads_every_level_and_process_in_the_form_that_the_parser_takes(
    scripts, tree, capsys, monkeypatch
):
    own = os.getpid()
    tree("kubepods.slice", **{**FILES, "cpu_weight": "79"})
    tree("kubepods.slice/kubepods-burstable.slice", **FILES)
    tree(BURSTABLE, **FILES, cgroup_procs="")
    tree(f"{BURSTABLE}/cri-containerd-a.scope", cpu_weight="17", cgroup_procs=f"{own}\n{NO_PROCESS}")
    monkeypatch.setattr(sys, "argv", ["pod_cgroups.py", f"there={UID}", "gone=11111111-0000"])

    assert scripts.pod_cgroups.main() == 0

    found = records(capsys.readouterr().out, "pod-cgroups")
    levels = [(record["level"], record["pod"], record["path"]) for record in of_kind(found, "level")]
    assert levels == [
        ("pod", "there", f"/{BURSTABLE}"),
        ("container", "there", f"/{BURSTABLE}/cri-containerd-a.scope"),
        ("parent", "", "/kubepods.slice"),
        ("parent", "", "/kubepods.slice/kubepods-burstable.slice"),
    ]
    assert cgroups.qos_from_path(levels[0][2]) == "Burstable"
    files = [record["files"] for record in of_kind(found, "level")]
    assert files[0] == {name.replace("_", "."): value for name, value in FILES.items()}
    assert files[1] == {**dict.fromkeys(files[0]), "cpu.weight": "17"}
    assert files[2]["cpu.weight"] == "79"
    assert [(record["pod"], record["uid"]) for record in of_kind(found, "absent")] == [("gone", "11111111-0000")]
    alive, ended = of_kind(found, "process")
    assert (alive["pid"], alive["comm"]) == (own, Path(f"/proc/{own}/comm").read_text().strip())
    assert -1000 <= int(alive["oom_score_adj"]) <= 1000
    assert (ended["comm"], ended["cgroup"], ended["oom_score_adj"], ended["oom_score"]) == (None, None, None, None)


# --- pod_signal -------------------------------------------------------------------------------------------------------


def test_a_pod_is_stopped_and_continued(scripts, tree, child):
    tree(f"{BURSTABLE}/cri-containerd-a.scope", cgroup_procs=f"{child.pid}\n{NO_PROCESS}")

    assert scripts.pod_signal.send(UID, "STOP") == 1
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    assert scripts.pod_signal.send(UID, "CONT") == 1
    assert os.WIFCONTINUED(os.waitpid(child.pid, os.WCONTINUED)[1])


def test_a_pod_that_is_not_there_gets_no_signal(scripts, tree):
    tree("kubepods.slice")

    assert scripts.pod_signal.send(UID, "STOP") == 0


def test_another_signal_than_the_two_is_refused(scripts, tree, child):
    tree(f"{BURSTABLE}/cri-containerd-a.scope", cgroup_procs=child.pid)

    with pytest.raises(KeyError):
        scripts.pod_signal.send(UID, "KILL")
    assert child.poll() is None


@pytest.mark.parametrize(("pids", "code"), [([], 1), ([NO_PROCESS], 1)])
def test_a_pod_without_a_process_is_an_error_of_the_program(scripts, tree, capsys, monkeypatch, pids, code):
    tree(BURSTABLE, cgroup_procs="\n".join(map(str, pids)))
    monkeypatch.setattr(sys, "argv", ["pod_signal.py", "CONT", UID])

    assert scripts.pod_signal.main() == code
    assert records(capsys.readouterr().out, "pod-signal")[-1]["sent"] == 0
