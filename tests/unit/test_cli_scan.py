from __future__ import annotations

import io
import json
import subprocess
import sys
import weakref
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

from lab.cli import console, scan, scan_output
from lab.scan.findings import findings_of
from tests import scan_texts as texts


def run(*argv):
    return scan.run_alone([str(word) for word in argv], name="lab scan")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pod.yaml").write_text(texts.POD)
    (tmp_path / "ok.yaml").write_text(texts.HARMLESS)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "web.yml").write_text("# comment\n" + texts.DEPLOYMENT)
    return tmp_path


def test_a_directory_in_json(folder, capsys):
    assert run(folder, "--json") == 1

    data = json.loads(capsys.readouterr().out)
    assert [(f["kind"], f["name"], f["line"]) for f in data["findings"]] == [
        ("Pod", "emp", 5),
        ("Deployment", "web", 15),
    ]
    assert data["objects"] == 3


def test_container_level_blocks_are_no_finding(folder, capsys):
    assert run(folder / "ok.yaml") == 0
    assert capsys.readouterr() == ("1 object read, 0 affected\n", "")


def test_what_cannot_be_read_is_2_and_the_rest_is_printed(folder, capsys):
    (folder / "bad.yaml").write_text("a: [\n---\n" + texts.POD)

    assert run(folder / "bad.yaml", "--json") == 2
    data = json.loads(capsys.readouterr().out)
    assert len(data["findings"]) == len(data["problems"]) == 1


def test_the_human_form(folder, capsys):
    assert run(folder, folder / "ok.yaml") == 1

    out = capsys.readouterr().out
    assert "Pod team/emp" in out
    assert "What mends it" in out
    assert out.endswith("4 objects read, 2 affected\n")


@pytest.mark.parametrize(("width", "table"), [(80, False), (160, True)])
def test_a_terminal_gets_the_table_where_it_fits(width, table, tmp_path, monkeypatch, capsys):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "deployment-of-the-web-servers.yaml").write_text(
        "# Source: chart/templates/web.yaml\n" + texts.DEPLOYMENT
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "data_console", Console(force_terminal=True, color_system=None, width=width))

    assert run("x") == 1
    out = capsys.readouterr().out
    assert ("\u2502" in out) == table
    assert "x/deployment-of-the-web-servers.yaml:15" in out
    assert "today" not in out
    assert "stored" not in out.split("What the wrong class")[0]
    assert all(len(line) <= width for line in out.splitlines())


def test_any_number_of_findings_is_printed_as_they_come(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scan_output, "MAX_ROWS", 10)
    monkeypatch.setattr(scan_output, "_BLOCK", 2000)
    names = [f"pod-{number}" for number in range(25)]
    (tmp_path / "x.yaml").write_text("---\n".join(texts.POD.replace("emp", name) for name in names))
    (tmp_path / "y.yaml").write_text("a: [\n")

    assert run(tmp_path) == 2
    out = capsys.readouterr().out
    assert [out.count(f"Pod team/{name} ") for name in names] == [1] * 25
    assert out.count("ffected pod specs") == 3
    assert "[Pod" not in out
    assert out.endswith("25 objects read, 25 affected, 1 problem in reading\n")

    pieces = []
    monkeypatch.setattr(scan_output.typer, "echo", lambda text, **_: pieces.append(text))
    for flag in ("--json", "--sarif"):
        pieces.clear()
        run(tmp_path, flag)
        data = json.loads("".join(pieces))
        found = data["findings"] if flag == "--json" else data["runs"][0]["results"]
        assert [name in json.dumps(each) for name, each in zip(names, found, strict=True)] == [True] * 25
        assert len(pieces) > 5
        assert max(map(len, pieces)) < 8000


def test_findings_are_not_held(tmp_path, monkeypatch, capsys):
    made, most = [], 0

    class Watched(scan.Finding):
        __slots__ = ("__weakref__",)

    def watch(item, **more):
        nonlocal most
        found = [Watched(**{f.name: getattr(each, f.name) for f in fields(each)}) for each in findings_of(item, **more)]
        made.extend(map(weakref.ref, found))
        most = max(most, sum(each() is not None for each in made))
        return found

    monkeypatch.setattr(scan, "findings_of", watch)
    (tmp_path / "x.yaml").write_text("---\n".join([texts.POD] * 50))
    for flags in (["--json"], ["--sarif"], []):
        assert run(tmp_path / "x.yaml", *flags) == 1
    assert 1 <= most <= 3


def test_problems_go_to_standard_error(folder, capsys):
    (folder / "bad.yaml").write_text("\n\x1ba: \x1b[\n")

    assert run(folder / "bad.yaml") == 2
    captured = capsys.readouterr()
    assert "bad.yaml:" in captured.err
    assert "\x1b" not in captured.err


def test_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(texts.POD.encode())))

    assert run("-", "--json") == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["file"] == "<stdin>"


def test_sarif(folder, capsys):
    assert run(folder, "--sarif") == 1
    assert len(json.loads(capsys.readouterr().out)["runs"][0]["results"]) == 2


def test_promql_scans_nothing(capsys):
    assert run("--promql") == 0
    assert "kube_pod_status_qos_class" in capsys.readouterr().out


def test_namespace_leaves_out_others(folder, capsys):
    run(folder, "--namespace", "elsewhere", "--json")

    assert [finding["name"] for finding in json.loads(capsys.readouterr().out)["findings"]] == ["web"]


def test_cluster_version_decides_todays_class(folder, capsys):
    run(folder / "pod.yaml", "--cluster-version", "v1.37.2", "--json")

    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["today"], finding["affected"]) == ("Burstable", "yes")


def test_a_runner_configuration(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("[[runners]]\n[runners.kubernetes]\nmemory_limit = '1Gi'\n")
    (tmp_path / "bad.toml").write_text("[[")

    assert run(tmp_path / "config.toml", "--json") == 1
    assert json.loads(capsys.readouterr().out)["possible"] == 1
    assert run(tmp_path / "bad.toml") == 2


def test_templates_are_read_when_they_are_asked_for(tmp_path, capsys):
    text = "spec:\n  containers:\n  - name: a\n  resources: {{ toYaml .Values.x }}\n"
    (tmp_path / "t.yaml").write_text(text)
    (tmp_path / "_helper.tpl").write_text(text)

    assert run(tmp_path) == 2
    assert "--templates" in capsys.readouterr().err
    assert run(tmp_path, "--templates", "--json") == 1
    assert [(f["affected"], f["line"]) for f in json.loads(capsys.readouterr().out)["findings"]] == [
        ("possible", 4)
    ] * 2


PARTLY = (
    "kind: Pod\napiVersion: v1\nspec:\n  resources: {}\n  containers:\n  - name: a\n"
    "---\n{{- if .x }}\na: b\n{{- end }}\n---\n"
    "kind: Pod\napiVersion: v1\nspec:\n  containers: []\n  resources: {{ toYaml .Values.x }}\n"
)


@pytest.fixture
def given(monkeypatch, tmp_path):
    """The same text as a file, on standard input and as what helm gives: options and name of each."""

    def give(how, text):
        path = tmp_path / "t.yaml"
        path.write_text(text)
        if how == "file":
            return [path], str(path)
        if how == "stdin":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            return ["-"], "<stdin>"
        (tmp_path / "helm").write_text(f"#!/bin/sh\ncat {path}\n")
        (tmp_path / "helm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return ["--helm", "chart"], "helm:chart"

    return give


@pytest.mark.parametrize("how", ["file", "stdin", "chart"])
def test_of_a_template_only_what_is_unreadable_is_read_as_one(how, given, capsys):
    argv, name = given(how, PARTLY)

    assert run(*argv, "--templates", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert {finding["file"] for finding in data["findings"]} == {name}
    assert [(finding["line"], finding["affected"]) for finding in data["findings"]] == [(4, "no"), (16, "possible")]
    assert (data["objects"], data["problems"]) == (3, [])


@pytest.mark.parametrize("how", ["file", "stdin", "chart"])
def test_what_is_neither_readable_nor_a_template_is_a_problem(how, given, capsys):
    argv, name = given(how, texts.POD + "---\nfoo: [ {{ x }\n")

    assert run(*argv, "--templates", "--json") == 2
    data = json.loads(capsys.readouterr().out)
    assert [finding["affected"] for finding in data["findings"]] == ["yes"]
    assert [(problem["file"], problem["line"]) for problem in data["problems"]] == [(name, 11)]


@pytest.mark.parametrize("name", ["t.yaml", "t.tpl"])
def test_a_template_that_is_too_long_is_told(name, tmp_path, capsys):
    unread = "spec:\n  containers: []\n  resources: {{ toYaml .Values.x }}\n"
    (tmp_path / name).write_text(f"{unread}---\nx: |\n" + "  line\n" * 200_000 + f"---\n{unread}")

    assert run(tmp_path, "--templates", "--json") == 2
    data = json.loads(capsys.readouterr().out)
    assert [finding["line"] for finding in data["findings"]] == [3]
    [problem] = data["problems"]
    assert "first 1 MiB" in problem["text"]
    assert problem["line"] == (200_006 if name == "t.yaml" else 149_792)


def test_a_spec_that_cannot_be_judged_is_a_problem(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text(texts.POD.replace("500m", "much"))

    assert run(tmp_path) == 2
    assert "much" in capsys.readouterr().err


def test_a_number_without_end_is_a_problem_with_file_and_line(tmp_path, capsys):
    path = tmp_path / "x.yaml"
    path.write_text(f"a: 1\n---\n{texts.POD.replace('500m', chr(34) + '9' * 1_000_000 + chr(34))}")

    assert run(path) == 2
    captured = capsys.readouterr()
    assert f"{path}:3: a pod spec that cannot be judged: quantity of more than 4000 digits" in captured.err
    assert len(captured.err) < 500


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "nothing to scan"),
        (["gone.yaml"], "gone.yaml"),
        (["-", "--json", "--sarif"], "one of them"),
        (["-", "--context", "x"], "--live"),
        (["-", "-f", "v.yaml"], "--helm"),
        (["-", "--cluster-version", "latest"], "no Kubernetes version"),
        (["-", "--cluster-version", ""], "no Kubernetes version"),
        ([""], "a file or directory is given as ''"),
        (["-", ""], "a file or directory is given as ''"),
        (["-", "--namespace", ""], "--namespace is given as ''"),
        (["--live", "--context", ""], "--context is given as ''"),
        (["--helm", ""], "--helm is given as ''"),
    ],
)
def test_bad_usage(argv, said, capsys):
    assert run(*argv) == 2
    assert said in capsys.readouterr().err


def test_a_missing_file_does_not_hide_the_others(folder, capsys):
    assert run(folder / "pod.yaml", "nope.yaml", "--json") == 2

    data = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in data["findings"]] == ["emp"]
    assert data["problems"] == [{"file": "nope.yaml", "line": None, "text": "there is no such file or directory"}]


def test_what_cannot_be_read_in_a_directory_does_not_hide_the_rest(folder, capsys):
    (folder / "a.yaml").symlink_to("nowhere")

    assert run(folder, "--json") == 2
    data = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in data["findings"]] == ["emp", "web"]
    assert data["problems"] == [
        {"file": f"{folder}/a.yaml", "line": None, "text": "cannot be read: a link that leads nowhere"}
    ]


def test_what_cannot_be_looked_at_is_not_missing(folder, monkeypatch, capsys):
    stat = Path.stat

    def refuse(self, **more):
        if self.name == "pod.yaml":
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, **more)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: refuse(self))

    assert run(folder / "pod.yaml", "--json") == 2
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["line"], problem["text"]) == (None, "cannot be read: Permission denied")


def test_a_failing_chart_does_not_hide_the_files(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    assert run(folder / "pod.yaml", "--helm", "chart", "--json") == 2
    data = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in data["findings"]] == ["emp"]
    assert [problem["file"] for problem in data["problems"]] == ["helm:chart"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.yaml", "hello world\n"), ("x.yaml", "- a\n"), ("x.toml", "a = 1\n"), ("x.txt", "kind: Pod\n")],
)
def test_nothing_to_read_is_told(name, text, tmp_path, capsys):
    (tmp_path / name).write_text(text)

    assert run(tmp_path / name if name != "x.txt" else tmp_path) == 0
    captured = capsys.readouterr()
    assert captured.out == "0 objects read, 0 affected\n"
    assert "nothing was found to read" in captured.err


def test_helm_must_be_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert run("--helm", "chart") == 2
    assert "helm template" in capsys.readouterr().err


def test_helm_renders_and_its_output_is_scanned(monkeypatch, capsys, tmp_path):
    helm = tmp_path / "helm"
    helm.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/argv\ncat <<EOF\n---\n# Source: c/templates/p.yaml\n{texts.POD}EOF\n'
    )
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert run("--helm", "./chart", "-f", "values.yaml", "--cluster-version", "1.36", "--json") == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["source"], finding["file"], finding["line"]) == ("c/templates/p.yaml", "helm:./chart", 7)
    assert (tmp_path / "argv").read_text() == "template --values values.yaml --kube-version 1.36.0 -- release ./chart\n"


def test_helms_refusal_is_told(monkeypatch, capsys, tmp_path):
    helm = tmp_path / "helm"
    helm.write_text("#!/bin/sh\necho no such chart >&2\nexit 1\n")
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert run("--helm", "chart") == 2
    assert "no such chart" in capsys.readouterr().err


def test_a_scan_imports_nothing_heavy(folder):
    program = (
        "import sys; from lab.cli import scan; code = scan.run_alone(sys.argv[1:], name='x');"
        "sys.exit(code or [m for m in ('pandas', 'paramiko', 'kubernetes', 'cryptography') if m in sys.modules] or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "ok.yaml"), "--json"], capture_output=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")
