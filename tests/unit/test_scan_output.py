from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lab.cli import console
from lab.scan import output, people
from lab.scan.findings import findings_of
from lab.scan.output import Report
from lab.scan.records import FixedPlace, Item, Problem
from lab.scan.runner import runner_findings
from lab.scan.templates import template_findings

SPEC = {"resources": {}, "containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}


def item(value, file="a b/x.yaml", line=4):
    return Item(value=value, file=file, place=FixedPlace(first=line))


def pod(name="p", **more):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n"}, "spec": SPEC, **more}


def some_findings():
    return [
        *findings_of(item(pod())),
        *findings_of(item(pod("live", status={"qosClass": "BestEffort"}), "cluster", 0), minor=36, live=True),
        *findings_of(item(pod("same", spec={"resources": {}, "containers": [{"name": "a"}]}))),
        *template_findings("resources: {}\ncontainers: []\n", "t.yaml"),
        *runner_findings("[[runners]]\n[runners.kubernetes]\ncpu_request = '1'\n", "config.toml"),
    ]


def counted(findings, **more):
    found = Report(**more)
    for finding in findings:
        found.add(finding)
    return found


def report(**more):
    return counted(some_findings(), objects=5, **more)


def written(document, elements, rest):
    """The whole document, read back."""
    return json.loads("".join([*map(document.element, elements), document.end(rest)]))


def sarif(findings, folder="/w", **more):
    results = [output.sarif_result(finding, folder) for finding in findings]
    rest = output.sarif_rest(counted(findings, **more), "1.2", folder)
    return written(output.sarif_document(), [result for result in results if result is not None], rest)


def explained(findings):
    explanation = people.Explanation()
    for finding in findings:
        if finding.affected is not False:
            explanation.add(finding)
    return explanation.lines()


def test_exit_codes():
    problem = Problem(file="f", line=1, text="x")
    harmless = [finding for finding in some_findings() if finding.affected is False]

    assert Report().exit_code == 0
    assert counted(harmless).exit_code == 0
    assert report().exit_code == 1
    assert Report(problems=[problem]).exit_code == report(problems=[problem]).exit_code == 2


def test_json_has_a_finding_per_object():
    whole = report(minor=36, problems=[Problem(file="f", line=3, text="bad")])
    findings = [finding.as_json() for finding in some_findings()]
    data = written(output.json_document(), findings, output.json_rest(whole))

    assert data["findings"] == json.loads(json.dumps(findings))

    assert (data["cluster_version"], data["objects"], data["affected"], data["possible"]) == ("1.36", 5, 2, 2)
    assert [entry["affected"] for entry in data["findings"]] == ["yes", "yes", "no", "possible", "possible"]
    first, live = data["findings"][:2]
    assert (first["name"], first["namespace"], first["kind"], first["file"], first["line"]) == (
        "p",
        "n",
        "Pod",
        "a b/x.yaml",
        4,
    )
    assert set(first["classes"]) == {"<= 1.33", "1.34-1.36", "1.37+", "1.37+ with the fix off"}
    assert (live["line"], live["stored"], live["stored_wrong"], live["today"]) == (
        None,
        "BestEffort",
        True,
        "BestEffort",
    )
    assert data["problems"] == [{"file": "f", "line": 3, "text": "bad"}]


def test_sarif_has_the_form_that_code_scanning_reads():
    log = sarif(some_findings(), problems=[Problem(file="f", line=0, text="bad")])

    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    [run] = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("node lab scan", "1.2")
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    assert len(run["results"]) == 4
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        assert result["message"]["text"].endswith(".")
        [location] = result["locations"]
        assert set(location) in ({"physicalLocation"}, {"logicalLocations"})
        if "physicalLocation" in location:
            assert location["physicalLocation"]["region"]["startLine"] >= 1
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"] if
            "physicalLocation" in r["locations"][0]]  # fmt: skip
    assert uris == ["a%20b/x.yaml", "t.yaml", "config.toml"]
    assert run["results"][1]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "Pod n/live"
    [invocation] = run["invocations"]
    assert invocation["executionSuccessful"] is False
    [notification] = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == "bad"
    assert "region" not in notification["locations"][0]["physicalLocation"]


def test_sarif_of_a_clean_scan():
    [run] = sarif([], objects=3)["runs"]

    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is True


def test_the_table_shows_what_is_told():
    rows = [people.row(finding) for finding in some_findings() if finding.affected is not False]

    assert all(len(row) == len(people.COLUMNS) for row in rows)
    assert [row[0] for row in rows] == ["Pod n/p", "Pod n/live", "t.yaml:1", "GitLab Runner (without a name)"]
    assert rows[1][4:6] == ["BestEffort", "BestEffort (wrong)"]


def test_columns_without_content_are_left_out():
    files, live = [people.row(finding) for finding in some_findings()[:2]]

    assert people.table([files]) == (
        ["object", "where", "on 1.34-1.36", "on 1.37+"],
        [["Pod n/p", "a b/x.yaml:4", "BestEffort", "Burstable"]],
    )
    columns, rows = people.table([files, live])
    assert columns == ["object", "where", "on 1.34-1.36", "on 1.37+", "today", "stored"]
    assert [cells[4:] for cells in rows] == [["-", "-"], ["BestEffort", "BestEffort (wrong)"]]


def test_the_width_of_a_table_is_that_of_what_is_printed(capsys, monkeypatch):
    columns, rows = people.table([["Pod \u6771\u4eac", "x.yaml:4", "BestEffort", "Burstable", "", "", "Helm"]])
    console.print_table("t", columns, rows)

    printed = capsys.readouterr().out.splitlines()[1]
    assert people.table_width(columns, rows) == len(printed)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_list_breaks_neither_words_nor_file_and_line(width):
    where = "deploy/" * 20 + "web.yaml:1234"
    rows = [
        ["Deployment production/web", where, "BestEffort", "Burstable", "BestEffort", "BestEffort (wrong)", "Helm a/b"],
        ["Pod p", "x.yaml:4", "possibly BestEffort", "by its containers", "", "", ""],
        ["t.yaml:1", "t.yaml:1", "possibly BestEffort", "by its containers", "", "", ""],
    ]
    lines = list(people.entries(rows, width))

    assert all(len(line) <= width or " " not in line.strip() for line in lines)
    assert lines[0] == f"{where}:"
    assert "x.yaml:4: Pod p" in lines
    assert "t.yaml:1" in lines
    text = " ".join(" ".join(lines).split())
    assert "BestEffort on 1.34-1.36, Burstable on 1.37+; today: BestEffort; stored: BestEffort (wrong); made by" in text


def test_texts_without_end_are_counted_and_not_held():
    findings = [replace(some_findings()[0], note=f"note {number}", name="p") for number in range(3 * people.MAX_TEXTS)]
    lines = explained(findings)

    assert sum("note" in line for line in lines) == people.MAX_TEXTS
    assert lines[-1] == f"  - and other texts, {2 * people.MAX_TEXTS} in all, which --json shows"
    assert sum("remove the key" in line for line in lines) == 1


def test_texts_are_said_once_and_what_is_not_for_all_names_its_objects():
    lines = explained(some_findings())

    assert len([line for line in lines if "a LimitRange:" in line]) == 1
    assert any("[Pod n/p, Pod n/live]" in line for line in lines)
    assert "1 live pod has the wrong class stored" in lines[-1]
    assert explained([]) == []


def test_the_summary_counts():
    text = output.summary(report(problems=[Problem(file="f", line=1, text="x")]))

    assert (
        text == "5 objects read, 2 affected, 2 possibly affected, 1 pod-level block without consequence, "
        "1 problem in reading"
    )
    assert output.summary(Report(objects=1)) == "1 object read, 0 affected"


def test_problems_of_one_input_are_capped():
    found = Report()
    for number in range(300):
        found.tell(Problem(file="f" if number % 2 else f"{number}.yaml", line=number, text="x"))
    found.close()

    assert len(found.problems) == 150 + output.MAX_PROBLEMS + 1
    assert str(found.problems[-1]) == "f: 50 more problems not shown"


def test_a_runners_configuration_is_no_pod_level_block():
    keys = "".join(f"pod_{name} = '1'\n" for name in ("cpu_request", "memory_request", "cpu_limit", "memory_limit"))
    completed = runner_findings("[[runners]]\n[runners.kubernetes]\npod_cpu_request = '1'\ncpu_limit = '1'\n", "t")
    found = runner_findings(f"[[runners]]\n[runners.kubernetes]\n{keys}", "config.toml")

    text = output.summary(counted(found, objects=1))
    assert text == "1 object read, 0 affected, 1 runner configuration without consequence"
    [run] = sarif(completed)["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["gitlab-runner-values"]


def test_control_characters_of_other_people_are_written_out():
    [finding] = findings_of(item(pod("\x1b[31mred\ud800")))
    row = people.row(finding)

    assert row[0] == "Pod n/\\u001b[31mred\\ud800"
    assert "\x1b" not in "".join(explained([finding]))
    assert output.printable("é ok") == "é ok"


def test_queries_name_the_series_they_need():
    text = output.promql()

    for name in ("kube_pod_status_qos_class", "kube_pod_container_resource_requests", "kubernetes_feature_enabled"):
        assert name in text
    assert text.count("(") == text.count(")")
    assert text.count("{") == text.count("}")
    for query in text.split("\n\n")[:2]:
        assert "kube_pod_container_resource_requests" in query
        assert "kube_pod_init_container_resource_requests" in query
    assert "only this fault" not in text


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("/w/repo/a/x.yaml", "a/x.yaml"), ("./x.yaml", "x.yaml"), ("../repo/x.yaml", "x.yaml"),
        ("a/../x.yaml", "x.yaml"),
        ("/w/repository/x.yaml", "/w/repository/x.yaml"), ("../x.yaml", "../x.yaml"), ("<stdin>", "%3Cstdin%3E"),
        ("a/x.yaml", "a/x.yaml"),
    ],
)  # fmt: skip
def test_paths_of_sarif_are_relative_to_the_working_directory_where_they_are_inside(file, uri):
    problem = Problem(file=file, line=2, text="x")
    [run] = sarif(findings_of(item(pod(), file)), "/w/repo", problems=[problem])["runs"]

    notification = run["invocations"][0]["toolExecutionNotifications"][0]
    for place in (run["results"][0]["locations"][0], notification["locations"][0]):
        assert place["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_the_template_that_helm_names_is_a_related_location():
    rendered = Item(value=pod(), file="helm:c", place=FixedPlace(first=4), source="c/templates/p.yaml")
    [run] = sarif(findings_of(rendered))["runs"]

    [related] = run["results"][0]["relatedLocations"]
    assert related["physicalLocation"]["artifactLocation"]["uri"] == "c/templates/p.yaml"
    assert "relatedLocations" not in sarif(some_findings())["runs"][0]["results"][0]


def test_every_reason_that_is_told_has_a_rule():
    found = [
        *findings_of(item(pod(spec={"containers": SPEC["containers"]}, status={"qosClass": "BestEffort"}))),
        *findings_of(item(pod(spec={"containers": SPEC["containers"]}, status={"qosClass": "BestEffort"})), live=True),
    ]
    [run] = sarif(found)["runs"]

    assert [result["ruleId"] for result in run["results"]] == ["posted-class", "stored-class"]
    assert all("requests and limits" in rule["help"]["text"] for rule in run["tool"]["driver"]["rules"])


def test_a_problem_without_a_line_is_printed_without_one():
    assert str(Problem(file="cluster", line=0, text="x")) == "cluster: x"
    assert str(Problem(file="f", line=3, text="x")) == "f:3: x"
