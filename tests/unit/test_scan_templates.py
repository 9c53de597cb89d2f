from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.scan.templates import template_findings

HEAD = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
"""
CONTAINERS = """\
      containers:
        - name: app
          resources:
            {{- toYaml .Values.resources | nindent 12 }}
"""

UNSAFE = {
    "one line": "      resources: {{- toYaml .Values.p | nindent 8 }}\n",
    "next line": "      resources:\n        {{- toYaml .Values.p | nindent 8 }}\n",
    "piped": "      resources: {{ .Values.p | toYaml | nindent 8 }}\n",
    "json": "      resources: {{ toJson .Values.p }}\n",
    "literal": "      resources: {}\n",
    "limits": "      resources:\n        limits:\n          {{- toYaml .Values.p.limits | nindent 10 }}\n",
    "other guard": "      {{- if .Values.enabled }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "closed guard": "      {{- with .Values.p }}\n      {{- end }}\n      resources: {{ toYaml .Values.p }}\n",
    "else": "      {{- if .Values.p }}\n      {{- else }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "or": "      {{- if or .Values.a .Values.p }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "not": "      {{- if not .Values.p }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "with of another": "      {{- with .Values.a }}\n      resources: {{ toYaml $.Values.p }}\n      {{- end }}\n",
    "range": "      {{- range .Values.a }}\n      resources: {{ toYaml . }}\n      {{- end }}\n",
    "column 0": "      resources:\n{{ toYaml .Values.p | indent 8 }}\n",
    "column 0 below a key": "      resources:\n        limits:\n{{ toYaml .Values.p.limits | indent 10 }}\n",
    "ne nil": "      {{- if ne .Values.p nil }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "eq": '      {{- if eq .Values.p.kind "x" }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n',
    "hasKey": '      {{- if hasKey .Values.p "a" }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n',
    "and ne": "      {{- if and .a (ne .Values.p nil) }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "empty": "      {{- if empty .Values.p }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "comment with braces": "      {{/* with .Values.p */}}\n      resources: {{ toYaml .Values.p }}\n",
}
SAFE = {
    "with": "      {{- with .Values.p }}\n      resources: {{- toYaml . | nindent 8 }}\n      {{- end }}\n",
    "with below": (
        "      {{- with .Values.p }}\n"
        "      resources:\n"
        "        {{- toYaml . | nindent 8 }}\n"
        "      {{- end }}\n"
    ),
    "if": "      {{- if .Values.p }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "else if": (
        "      {{- if .Values.a }}\n"
        "      {{- else if .Values.p }}\n"
        "      resources: {{ toYaml .Values.p }}\n"
        "      {{- end }}\n"
    ),
    "if gt": "      {{- if gt (len .Values.p) 0 }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "dollar": "      {{- if $.Values.p }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "inside": "      resources:\n        {{- with .Values.p }}\n        {{- toYaml . }}\n        {{- end }}\n",
    "content": (
        "      resources:\n"
        "        requests:\n"
        "          cpu: 1\n"
        "        limits:\n"
        "          {{- toYaml .Values.l | nindent 10 }}\n"
    ),
    "one line guard": (
        "      {{- with .Values.p }}{{ if . }}\n"
        "      resources: {{ toYaml . }}\n"
        "      {{- end }}{{ end }}\n"
    ),
    "column 0": (
        "{{- with .Values.p }}\n      resources:\n{{ toYaml . | indent 8 }}\n{{- end }}\n"
    ),
    "guard at column 0": "      resources:\n{{- with .Values.p }}\n{{ toYaml . | indent 8 }}\n{{- end }}\n",
    "not empty": "      {{- if not (empty .Values.p) }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "and": "      {{- if and .Values.a .Values.p }}\n      resources: {{ toYaml .Values.p }}\n      {{- end }}\n",
    "another key's action": (
        "      resources:\n        requests:\n          cpu: 1\n{{ toYaml .Values.other | indent 6 }}\n"
    ),
    "none": "      nodeSelector: {{ toYaml .Values.nodeSelector }}\n",
}  # fmt: skip


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_forms_are_possible_findings_at_their_line(name, order):
    text = HEAD + (UNSAFE[name] + CONTAINERS if order == "before" else CONTAINERS + UNSAFE[name])

    [finding] = template_findings(text, "t.yaml")
    assert finding.affected is None
    assert text.split("\n")[finding.line - 1].startswith("      resources:")


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", SAFE)
def test_safe_forms_and_containers_are_not(name, order):
    text = HEAD + (SAFE[name] + CONTAINERS if order == "before" else CONTAINERS + SAFE[name])

    assert template_findings(text, "t.yaml") == []


def test_dashes_at_the_same_indentation_are_the_list_of_containers():
    text = HEAD + "      containers:\n      - name: a\n        resources: {}\n      resources: {}\n"

    assert [finding.line for finding in template_findings(text, "t")] == [9]


PAIR = "  resources: {{ toYaml .Values.p }}\n  containers:\n  - name: a\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("kind: Prometheus\nspec:\n" + PAIR, []),
        ("spec:\n" + PAIR + "kind: Prometheus\n", []),
        ("kind: Pod\nspec:\n" + PAIR, [3]),
        ("spec:\n" + PAIR + "kind: Pod\n", [2]),
        ("kind: Prometheus\nspec:\n" + PAIR + "---\nkind: Pod\nspec:\n" + PAIR, [9]),
        # A named template has no kind.
        ('{{- define "pod" }}\nspec:\n' + PAIR + "{{- end }}\n", [3]),
        ("resources: {}\ncontainers: []\n", [1]),
        ("kind: Thing\nspec:\n  podTemplate:\n    spec:\n      resources: {}\n      containers: []\n", [5]),
        ("kind: Thing\nspec:\n  templates:\n  - spec:\n      resources: {}\n      containers: []\n", [5]),
        ("kind: Thing\nspec:\n  other:\n    spec:\n      resources: {}\n      containers: []\n", []),
        ("kind: Thing\ntemplate:\n  resources: {}\n  containers: []\n", []),
    ],
)
def test_a_pair_counts_where_a_pod_spec_is(text, lines):
    assert [finding.line for finding in template_findings(text, "t")] == lines


def test_containers_of_another_document_or_block_do_not_count():
    assert template_findings("spec:\n  resources: {}\n---\nspec:\n  containers:\n  - name: a\n", "t") == []
    assert template_findings("a:\n  resources: {}\nb:\n  containers:\n  - name: a\n", "t") == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(
    ["resources:", "containers:", " ", "  ", "\n", "{{", "}}", "{{- end }}", "{{ if .a }}", "{{ else }}", "toYaml",
     " .Values.x", "{}", "/*", "*/", "---\n", "#", "- ", "{{ with . }}", "x: 1\n", "\t", "é", "\0"]
)).map("".join))  # fmt: skip
def test_any_text_is_read(text):
    assert all(finding.affected is None for finding in template_findings(text, "t"))


@pytest.mark.parametrize(
    "unit", ["{{/*", "{{ ", "{{" + " " * 4000 + "\n", "resources:\n ", "{{ if .a }}", " ." * 100, "/**"]
)
def test_long_texts_take_linear_time(unit):
    # No clock: a reading that is quadratic in these would not end within the suite's patience.
    template_findings(unit * ((1 << 20) // len(unit)), "t")
