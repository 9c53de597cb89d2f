"""A control plane on the node: its files, its start, its freezing, and a whole installation on a machine that stays."""

from __future__ import annotations

import json
import logging
import os
import re
import tomllib
from datetime import UTC, datetime

import pytest
import yaml

from lab.artifacts import Binaries
from lab.distros import removal
from lab.distros.upstream import node_plane, pki, runtime
from lab.distros.upstream.distro import REMOVAL, Upstream
from lab.host import Command, Deadline, LocalHost
from lab.model import Cell, CommandError, Gate, Interrupted, NodeError, TransportError, UsageError
from lab.providers.contract import Node, Site
from tests.captures_helper import configz_for
from tests.fakes import FakeClock, FakeHost, Inside, Reply, waits_on
from tests.node_programs import late_in_a_second
from tests.unit.test_upstream_distro import FACTS

DROPLET = Site(reaches_controller=False, has_runtime=False, is_lasting=False)
OWN = Site(reaches_controller=False, has_runtime=True, is_lasting=True)
READY = json.dumps({
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}]}
})


def cell(*gates):
    return Cell(distro="upstream", version="v1.37.2", gates=tuple(Gate.parse(text) for text in gates))


@pytest.fixture(scope="module")
def texts():
    keys = pki.ControlPlanePki.make(now=datetime(2026, 1, 1, tzinfo=UTC))
    return node_plane.texts(keys, cell("A=false@apiserver", "B=true@kubelet"))


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    waits_on(made, monkeypatch)
    return made


@pytest.fixture
def host(clock):
    return FakeHost("n-1", clock)


class TestTexts:
    def test_keys_and_kubeconfigs_are_for_root_only(self, texts):
        secret = [path for path, (text, _) in texts.items() if "PRIVATE KEY" in text or "client-key-data" in text]
        assert len(secret) > 5
        assert all(texts[path][1] == 0o600 and path.startswith("/etc/lab/") for path in secret)

    def test_every_file_that_a_unit_names_is_laid_down(self, texts):
        for unit in node_plane.UNITS:
            for word in texts[f"/etc/systemd/system/{unit}.service"][0].split():
                path = word.partition("=")[2]
                if path.startswith("/etc/lab/"):
                    assert path in texts

    def test_the_kubelets_own_keys_are_not_laid_down_twice(self, texts):
        assert not [path for path in texts if "kubelet" in path and "apiserver-kubelet" not in path]

    @pytest.mark.parametrize("unit", node_plane.UNITS)
    def test_each_unit_is_in_the_slice_and_on_loopback(self, texts, unit):
        text = texts[f"/etc/systemd/system/{unit}.service"][0]
        assert "Slice=lab-control.slice\n" in text
        assert "StartLimitBurst=3\n[Service]\n" in text
        [line] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        assert line.startswith("/opt/lab/bin/")
        # Nothing in it that systemd would read as a specifier, a variable or a quote.
        assert not re.search(r"[%$'\"\\]", line)
        for url in re.findall(r"https?://\S+", line):
            assert url.startswith(("https://127.0.0.1:", "https://kubernetes.default.svc"))

    def test_only_the_api_server_gets_its_gates(self, texts):
        having = [path for path, (text, _) in texts.items() if "--feature-gates" in text]
        assert having == ["/etc/systemd/system/lab-apiserver.service"]
        assert "--feature-gates=A=false " in texts[having[0]][0]

    def test_the_administrator_talks_to_the_port_that_the_server_has(self, texts):
        config = yaml.safe_load(texts["/etc/lab/admin.kubeconfig"][0])
        assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:16443"
        assert "--secure-port=16443" in texts["/etc/systemd/system/lab-apiserver.service"][0]


class TestRuntime:
    @pytest.mark.parametrize(
        ("has_runtime", "is_lasting", "chosen"),
        [
            (True, False, runtime.PRESENT),
            (True, True, runtime.BROUGHT),
            (False, False, runtime.BROUGHT),
            (False, True, runtime.BROUGHT),
        ],
    )
    def test_an_owners_containerd_is_never_taken(self, has_runtime, is_lasting, chosen):
        site = Site(reaches_controller=True, has_runtime=has_runtime, is_lasting=is_lasting)
        assert runtime.of_site(site) is chosen

    def test_every_folder_is_the_labs_own(self):
        config = tomllib.loads(runtime.BROUGHT_CONFIG)
        cri = config["plugins"]["io.containerd.cri.v1.runtime"]
        options = cri["containerd"]["runtimes"]["runc"]["options"]
        places = [
            config["root"], config["state"], config["grpc"]["address"], cri["cni"]["conf_dir"], options["Root"],
            options["BinaryName"], config["plugins"]["io.containerd.internal.v1.opt"]["path"],
        ]  # fmt: skip
        assert all(place.startswith(("/var/lib/lab/", "/run/lab/", "/etc/lab/", "/opt/lab/")) for place in places)
        assert config["grpc"]["address"] == runtime.BROUGHT.socket
        assert config["plugins"]["io.containerd.nri.v1.nri"]["disable"] is True
        assert cri["disable_apparmor"] is True

    def test_its_programs_are_found_first(self):
        assert runtime.BROUGHT.environment["PATH"].split(":")[0] == "/opt/lab/bin"
        assert runtime.PRESENT.environment == {}


def hold_words(verb):
    return ("sh", "-c", node_plane.HOLD, "sh", verb, "lab-control.slice", "1" if verb == "freeze" else "0")


def verbs(host):
    return [argv[4] for argv in host.argvs if argv[:3] == ("sh", "-c", node_plane.HOLD)]


class TestFrozen:
    def test_frozen_inside_and_thawed_after(self, host):
        host.answer(hold_words("freeze"), Reply(stdout="812\n"))
        host.answer(hold_words("thaw"), Reply(stdout="815\n"))
        with node_plane.on(host).frozen() as record:
            assert verbs(host) == ["freeze"]
            assert record == {"frozen_usage_usec": 812}
        assert verbs(host) == ["freeze", "thaw"]
        assert record == {"frozen_usage_usec": 812, "thawed_usage_usec": 815}
        assert all(command.repeatable for command in host.commands)

    @pytest.mark.parametrize("answer", ["", "\n", "n/a\n"])
    def test_cpu_time_that_was_not_read_is_not_zero(self, host, answer):
        for verb in ("freeze", "thaw"):
            host.answer(hold_words(verb), Reply(stdout=answer))
        with node_plane.on(host).frozen() as record:
            pass
        assert record == {"frozen_usage_usec": None, "thawed_usage_usec": None}

    @pytest.mark.parametrize("error", [ValueError("x"), Interrupted("x"), KeyboardInterrupt(), TransportError("x")])
    def test_thawed_whatever_ends_the_block(self, host, error):
        for verb in ("freeze", "thaw"):
            host.answer(hold_words(verb), Reply())
        with pytest.raises(type(error)), node_plane.on(host).frozen():
            raise error
        assert verbs(host) == ["freeze", "thaw"]

    def test_what_did_not_freeze_is_an_error_and_is_thawed(self, host):
        host.answer(hold_words("freeze"), Reply(status=1, stdout="systemctl freeze: not supported; frozen 0\n"))
        host.answer(hold_words("thaw"), Reply())
        with pytest.raises(NodeError, match=r"would not freeze: .*not supported"), node_plane.on(host).frozen():
            pytest.fail("the block must not run")
        assert verbs(host) == ["freeze", "thaw"]

    def test_a_block_that_ended_well_tells_of_a_plane_that_stays_frozen(self, host):
        host.answer(hold_words("freeze"), Reply())
        host.answer(hold_words("thaw"), Reply(status=1, stdout="frozen 1"))
        with pytest.raises(NodeError, match="would not thaw: frozen 1"), node_plane.on(host).frozen():
            pass

    def test_the_first_error_is_not_hidden_by_a_link_that_is_gone(self, host, caplog):
        host.answer(hold_words("freeze"), Reply())
        host.answer(hold_words("thaw"), TransportError("n-1: connection lost"))
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(ValueError, match="the measurement"),
            node_plane.on(host).frozen(),
        ):
            raise ValueError("the measurement")
        assert "still frozen" in caplog.text

    def test_no_cpu_time_is_claimed_for_the_controller(self, host):
        assert node_plane.on(host).cpu_seconds() == {}


class TestHold:
    """The program itself, with a stand-in for systemctl and for the kernel's file."""

    @pytest.fixture
    def run(self, tmp_path):
        def run(verb, wanted, state, status=0):
            (tmp_path / "lab-control.slice").mkdir(exist_ok=True)
            (tmp_path / "lab-control.slice" / "cgroup.events").write_text(f"populated 1\nfrozen {state}\n")
            tool = tmp_path / "systemctl"
            tool.write_text(
                '#!/bin/sh\n[ "$1" = show ] && { echo /lab-control.slice; exit 0; }\n'
                f'echo "Failed to $1 $2" >&2; exit {status}\n'
            )
            tool.chmod(0o755)
            script = node_plane.HOLD.replace("/sys/fs/cgroup", str(tmp_path)).replace("sleep 0.1", ":")
            argv = ("sh", "-c", script, "sh", verb, "lab-control.slice", wanted)
            return LocalHost().run(Command(argv=argv, check=False, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}))

        return run

    @pytest.mark.parametrize(("verb", "wanted"), [("freeze", "1"), ("thaw", "0")])
    def test_the_kernel_confirms(self, run, verb, wanted):
        assert run(verb, wanted, wanted).exit_status == 0

    def test_the_kernel_decides_and_not_the_exit_status(self, run):
        assert run("thaw", "0", "0", status=1).exit_status == 0
        assert run("freeze", "1", "0").exit_status == 1

    def test_a_failure_says_what_was_said(self, run):
        done = run("freeze", "1", "0", status=4)
        assert done.exit_status == 1
        assert "Failed to freeze lab-control.slice (exit status 4)" in done.stdout
        assert "frozen 0" in done.stdout


class TestCheckAlive:
    def argv(self, *units):
        return ("sh", "-c", node_plane.ALIVE, "sh", *units)

    def test_all_run(self, host):
        host.answer(self.argv(*node_plane.UNITS), Reply(stdout="active active active activating\n"))
        node_plane.on(host).check_alive()

    def test_one_that_ended_is_named_with_the_journal(self, host):
        host.answer(self.argv(*node_plane.UNITS), Reply(stdout="active failed active active\nbind: address in use\n"))
        with pytest.raises(NodeError, match=r"lab-etcd active, lab-apiserver failed, .*last lines:\nbind: address"):
            node_plane.on(host).check_alive()

    @pytest.mark.parametrize(("states", "ended"), [("active\nactive", False), ("active\nfailed", True)])
    def test_the_program(self, tmp_path, states, ended):
        for name, script in (("systemctl", f"printf '{states}\n'; exit 3"), ("journalctl", 'echo "last words $*"')):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        done = LocalHost().run(
            Command(argv=self.argv("a", "b"), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
        )
        lines = done.stdout.splitlines()
        assert lines[0] == states.replace("\n", " ")
        assert lines[1:] == ([f"last words -u a -u b -n {node_plane.JOURNAL_LINES} -o cat --no-pager"] if ended else [])


class TestStartProgram:
    def test_links_and_units_and_again(self, tmp_path):
        (tmp_path / "bin").mkdir()
        (tmp_path / "lab" / "pki").mkdir(parents=True)
        for name in ("systemctl", "journalctl"):
            (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\n[ -z "$FAIL" ] || [ "$1" != start ]\n')
            (tmp_path / name).chmod(0o755)
        script = node_plane.START.replace("/opt/lab/bin", str(tmp_path / "bin")).replace("/etc/lab", f"{tmp_path}/lab")
        argv = ("sh", "-c", script, "sh", "lab-etcd lab-apiserver", "kubectl", "hyperkube", "kubelet", "hyperkube")
        for fail in ("", "", "yes"):
            env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAIL": fail}
            done = LocalHost().run(Command(argv=argv, env=env, check=False))
            assert os.readlink(tmp_path / "bin" / "kubelet") == "hyperkube"
            assert (tmp_path / "lab" / "pki").stat().st_mode & 0o777 == 0o700
            assert done.stdout.splitlines() == ["systemctl daemon-reload", "systemctl start lab-etcd lab-apiserver"]
            assert done.exit_status == (1 if fail else 0)
            assert ("journalctl -u lab-etcd -u lab-apiserver" in done.stderr) is bool(fail)


class Machine:
    """A fake host that a whole installation can be done on; ``said`` is what its before-program says."""

    def __init__(self, host, said="saved\n", status=0, gate="0"):
        self.host = host
        answers = {
            "/healthz": "ok", "/metrics": f'kubernetes_feature_enabled{{name="A",stage="BETA"}} {gate}\n',
        }  # fmt: skip
        kubectl = {
            "/version": json.dumps({"gitVersion": "v1.37.2"}),
            "/metrics": answers["/metrics"],
        }

        def call(command):
            words = command.argv[4:]
            if words[:2] == ("get", "--raw"):
                return Reply(stdout=kubectl[words[2]])
            return Reply(stdout=READY if words[:2] == ("get", "node") else "")

        host.answer(removal.RUN, Reply(stdout=said, status=status))
        host.answer(("sh", "/opt/lab/node-scripts/node_facts.sh"), Reply(stdout=FACTS))
        host.answer_when(lambda command: command.argv[0] == "/opt/lab/bin/kubectl", call)

        def get(command):
            path = command.argv[-1].removeprefix("https://127.0.0.1:10250")
            if path == "/configz":
                return Reply(stdout=configz_for(host.text("/etc/lab/kubelet.yaml")))
            return Reply(stdout=answers[path])

        host.answer_when(lambda command: command.argv[0] == "curl", get)
        host.answer_when(lambda command: node_plane.ALIVE in command.argv, Reply(stdout="active active\n"))
        host.answer_when(lambda command: "systemctl daemon-reload" in " ".join(command.argv), Reply())
        host.answer_when(lambda command: node_plane.HOLD in command.argv, Reply())
        host.answer_when(lambda command: node_plane.READY in command.argv, Reply())


@pytest.fixture
def binaries(tmp_path):
    """A multi-call binary with its links, etcd, and a runtime."""
    folder = tmp_path / "bin"
    folder.mkdir()
    names = ("hyperkube", "etcd", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
    for name in names:
        (folder / name).write_text(f"program {name}\n")
    components = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
    for name in components:
        (folder / name).symlink_to("hyperkube")

    def record(kind, *parts):
        return Binaries(
            kind=kind, version="v1.37.2", components={name: folder / name for name in parts},
            sha256=dict.fromkeys(parts, "0" * 64), origin="cache", first_origin=f"{kind}-origin", detail="x",
        )  # fmt: skip

    return record("upstream", *components, "etcd"), record("runtime", *names[2:])


SCRIPTS = {"node_facts.sh": "facts", REMOVAL.before: "before it", REMOVAL.remove: "remove it"}


def upstream(binaries, scripts=SCRIPTS):
    return Upstream(
        resolve=lambda version: binaries[0], scripts=scripts, progress=print, resolve_runtime=lambda: binaries[1]
    )


def node(host, tmp_path, site=DROPLET):
    return Node(
        id="n-r", provider="fake", site=site, folder=tmp_path, host=host, facts={}, controller_address=None,
    )  # fmt: skip


class TestInstall:
    @pytest.mark.parametrize("site", [DROPLET, OWN])
    def test_from_nothing_to_a_cluster_and_back_to_it(self, binaries, host, clock, tmp_path, site):
        Machine(host)
        machine = node(host, tmp_path, site)
        cluster = upstream(binaries).install(machine, cell(), Deadline.after(900, clock))
        assert host.argvs[0] == removal.RUN
        assert host.transfers == [
            f"/opt/lab/bin/{name}"
            for name in ("hyperkube", "etcd", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
        ]
        assert all(host.files[path][1] == 0o755 for path in host.transfers)
        starts = [argv for argv in host.argvs if argv[:3] == ("sh", "-c", node_plane.START)]
        assert [argv[4] for argv in starts] == ["lab-etcd lab-apiserver", "lab-scheduler lab-controller-manager"]
        assert starts[0][5:7] == ("kube-apiserver", "hyperkube")
        assert "etcd" not in starts[0][5:]
        kubeconfig = yaml.safe_load(host.text("/etc/lab/kubelet.kubeconfig"))
        assert kubeconfig["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:16443"
        assert (cluster.must_agree["control_plane"], cluster.shown["runtime_origin"]) == ("node", "runtime-origin")
        assert cluster.own_cpu_s() == {}
        assert set(json.loads(cluster.facts_texts["binaries.json"])) >= {"kubelet", "etcd", "containerd", "runc"}
        assert cluster.kubectl.kubeconfig == "/etc/lab/admin.kubeconfig"
        facts = next(command for command in host.commands if "node_facts.sh" in command.argv[-1])
        assert facts.env == runtime.BROUGHT.environment
        with cluster.frozen():
            assert verbs(host) == ["freeze"]
        again = upstream(binaries).attach(machine, cell())
        assert verbs(host) == ["freeze", "thaw", "thaw"]
        with pytest.raises(UsageError, match=r"no gate set; asked for was .* with the gate A=false: leave out --gate"):
            upstream(binaries).attach(machine, cell("A=false"))
        assert (again.must_agree, again.shown) == (cluster.must_agree, cluster.shown)

    def test_waits_alone_are_waiting(self, binaries, host, clock, tmp_path):
        Machine(host)
        ready = Inside(host)
        upstream(binaries).install(node(host, tmp_path), cell(), Deadline.after(900, clock), ready)
        waits = [command.argv for command in ready.commands]
        assert waits[0][:3] == ("sh", "-c", node_plane.READY)
        assert waits[1][-1] == "https://127.0.0.1:10250/healthz"
        words = [("apply", "--server-side"), ("get", "node"), ("get", "serviceaccount"), ("get", "serviceaccount")]
        assert [argv[4:6] for argv in waits[2:]] == words

    def test_every_command_but_the_starts_may_be_repeated(self, binaries, host, clock, tmp_path):
        Machine(host)
        upstream(binaries).install(node(host, tmp_path), cell(), Deadline.after(900, clock))
        assert [command.shown() for command in host.commands if not command.repeatable] == []

    def test_no_secret_stands_in_an_argument(self, binaries, host, clock, tmp_path):
        Machine(host)
        upstream(binaries).install(node(host, tmp_path), cell(), Deadline.after(900, clock))
        assert not any("PRIVATE KEY" in word or "key-data" in word for argv in host.argvs for word in argv)

    def test_a_machine_with_another_kubernetes_is_left_alone(self, binaries, host, clock, tmp_path):
        Machine(host, said="refused: /var/lib/kubelet\nrefused: /etc/lab\n", status=3)
        with pytest.raises(NodeError, match=r"/var/lib/kubelet, /etc/lab are there already .* nothing was installed"):
            upstream(binaries).install(node(host, tmp_path, OWN), cell(), Deadline.after(900, clock))
        assert host.argvs == [removal.RUN]
        assert host.files == {}

    def test_without_a_source_of_the_runtime_nothing_is_started(self, binaries, host, clock, tmp_path):
        plain = Upstream(resolve=lambda version: binaries[0], scripts=SCRIPTS, progress=print)
        with pytest.raises(UsageError, match="no source of containerd and runc"):
            plain.install(node(host, tmp_path), cell(), Deadline.after(900, clock))
        assert host.argvs == []

    def test_files_of_a_node_that_reaches_the_controller_and_has_no_runtime(self, binaries):
        found = upstream(binaries).files(cell(), Site(reaches_controller=True, has_runtime=False, is_lasting=False))
        names = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
        assert sorted(found) == sorted(f"/opt/lab/bin/{name}" for name in names)

    def test_separate_binaries_need_no_link(self, binaries, tmp_path):
        folder = tmp_path / "separate"
        folder.mkdir()
        for name in binaries[0].components:
            (folder / name).write_text(name)
        made = Binaries(
            kind="upstream", version="v1.37.2", components={name: folder / name for name in binaries[0].components},
            sha256={}, origin="cache", first_origin="download", detail="x",
        )  # fmt: skip
        files, links = node_plane.programs(made)
        assert links == {}
        assert sorted(files) == sorted(f"/opt/lab/bin/{name}" for name in made.components)


class TestStart:
    def test_a_gate_that_only_the_api_server_refuses_is_bad_input(self, host, clock):
        host.answer_when(lambda command: node_plane.START in command.argv, Reply())
        ended = Reply(status=1, stdout="refused\nactive failed\nError: unrecognized feature gate: A\n")
        host.answer_when(lambda command: node_plane.READY in command.argv, ended)
        with pytest.raises(UsageError, match=r"v1\.37\.2 does not know a gate of: A=false"):
            node_plane.start(host, cell("A=false"), {}, Deadline.after(60, clock))

    def test_an_api_server_that_never_gets_ready_shows_its_last_answer(self, host, clock):
        host.answer_when(lambda command: node_plane.START in command.argv, Reply())
        answer = Reply(status=1, stdout="[-]etcd failed\nactive active\nlast words\n")
        host.answer_when(lambda command: node_plane.READY in command.argv, answer)
        with pytest.raises(NodeError, match=r"(?s)lab-apiserver, last lines:\n\[-\]etcd failed.*last words"):
            node_plane.start(host, cell(), {}, Deadline.after(60, clock))
        [wait] = [command for command in host.commands if node_plane.READY in command.argv]
        assert (wait.argv[4], wait.timeout_s > 60, wait.repeatable) == ("60", True, True)

    def wait(self, folder, seconds, answers, state):
        """The program as it ended: the API server gives one answer after another and then the last for ever."""
        calls = folder / "calls"
        programs = {
            "curl": f'echo x >> {calls}; set -- {" ".join(answers)}; n=$(wc -l < {calls}); '
            '[ $n -gt $# ] && n=$#; shift $((n - 1)); printf %s "$1"',
            "systemctl": f"echo {state}; exit 3",
            "journalctl": "echo last words",
            "sleep": "exit 0",
        }
        for name, script in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        argv = ("sh", "-c", node_plane.READY, "sh", str(seconds), *node_plane.FIRST)
        env = {"PATH": f"{folder}:{os.environ['PATH']}"}
        return LocalHost().run(Command(argv=argv, env=env, check=False))

    @pytest.mark.parametrize("answers", [["ok"], ["no", "no", "ok"]])
    def test_the_program_that_waits(self, tmp_path, answers):
        done = self.wait(tmp_path, 50, answers, "active")
        assert (done.exit_status, done.stdout) == (0, "")

    @pytest.mark.parametrize(("seconds", "state"), [(50, "failed"), (0, "active")])
    def test_it_ends_with_a_unit_and_with_its_time(self, tmp_path, seconds, state):
        done = self.wait(tmp_path, seconds, ["no"], state)
        assert (done.exit_status, done.stdout) == (1, f"no\n{state}\nlast words\n")

    def test_it_waits_its_whole_time_however_late_in_a_second_it_begins(self, tmp_path):
        late_in_a_second()
        done = self.wait(tmp_path, 1, ["no"], "active")
        assert (done.exit_status, done.seconds > 0.98) == (1, True)

    def test_a_unit_that_does_not_start_shows_what_was_said(self, host, clock):
        failed = Reply(status=1, stderr="failed\nactive\netcd: no space left on device\n")
        host.answer_when(lambda command: node_plane.START in command.argv, failed)
        with pytest.raises(CommandError, match="no space left on device"):
            node_plane.start(host, cell(), {}, Deadline.after(60, clock))


class TestSaveLogs:
    def test_all_logs_by_their_units(self, binaries, host, tmp_path):
        host.answer_when(lambda command: command.argv[0] == "journalctl", lambda c: Reply(stdout=" ".join(c.argv[1:])))
        host.answer_when(lambda command: True, Reply(status=1, stderr="no such file"))
        upstream(binaries).save_logs(None, node(host, tmp_path), tmp_path / "logs")
        texts = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
        assert set(texts) == {
            "kubelet.log", "containerd.log", "control-plane.log", "kernel.log", "journal.log", "index.txt",
        }  # fmt: skip
        assert texts["kubelet.log"].startswith("-u lab-kubelet ")
        assert texts["containerd.log"].startswith("-u lab-containerd ")
        for unit in node_plane.UNITS:
            assert f"-u {unit} " in texts["control-plane.log"]

    def test_a_node_that_is_gone(self, binaries, host, tmp_path):
        host.answer_when(lambda command: True, TransportError("gone"))
        upstream(binaries).save_logs(None, node(host, tmp_path), tmp_path / "logs")
        assert [path.name for path in (tmp_path / "logs").iterdir()] == ["index.txt"]
        assert len(host.commands) == 1


class TestRemoval:
    @pytest.mark.parametrize("said", ["removed\n", "nothing installed\n"])
    def test_uninstall_sends_the_program_on_standard_input(self, binaries, host, tmp_path, said):
        host.answer(removal.RUN, Reply(stdout=said))
        upstream(binaries).uninstall(node(host, tmp_path, OWN))
        [command] = host.commands
        assert (command.stdin, command.repeatable) == ("remove it", True)

    def test_what_would_not_go_is_named(self, binaries, host, tmp_path):
        host.answer(removal.RUN, Reply(stdout="left: mounted: /run/lab/x\nleft: process 7\n", status=1))
        with pytest.raises(NodeError, match="not everything could be removed: left: mounted: /run/lab/x; left: pro"):
            upstream(binaries).uninstall(node(host, tmp_path, OWN))

    def test_an_end_that_says_nothing_is_no_success(self, binaries, host, tmp_path):
        host.answer(removal.RUN, Reply())
        with pytest.raises(NodeError, match="nothing was said"):
            upstream(binaries).uninstall(node(host, tmp_path, OWN))

    def test_what_an_earlier_run_left_goes_first(self, host):
        host.answer(removal.RUN, Reply(stdout="saved before\n"), Reply(stdout="removed\n"), Reply(stdout="saved\n"))
        REMOVAL.remember(host, SCRIPTS)
        assert [command.stdin for command in host.commands] == ["before it", "remove it", "before it"]

    @pytest.mark.parametrize("reply", [Reply(status=2, stderr="sh: no"), Reply(stdout="saved before\n"), Reply()])
    def test_a_machine_that_could_not_be_written_down_is_not_installed_on(self, host, reply):
        removed = Reply(stdout="removed\n")
        host.answer_when(lambda c: c.argv == removal.RUN, lambda c: removed if c.stdin == "remove it" else reply)
        with pytest.raises(NodeError, match=r"upstream_before\.sh ended with"):
            REMOVAL.remember(host, SCRIPTS)

    def test_a_project_without_the_programs(self, host):
        with pytest.raises(UsageError, match=r"hold no upstream_remove\.sh"):
            REMOVAL.take_off(host, {})
