"""Texts for tests of the scan: manifests with known answers, and YAML with the JSON that Kubernetes makes of it."""

from __future__ import annotations

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: emp, namespace: team}
spec:
  resources: {}
  containers:
  - name: app
    image: registry.example/app:1
    resources: {requests: {cpu: 500m, memory: 256Mi}}
"""

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: app
        resources:
          limits: {cpu: "1", memory: 1Gi}
      resources: {}
"""

HARMLESS = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: harmless
spec:
  template:
    spec:
      containers:
      - name: app
        resources: {}
      - name: other
        resources: {requests: {cpu: 10m}}
"""

# What `YAMLToJSON` of sigs.k8s.io/yaml v1.6.0 makes of `k: TEXT`, as recorded from that program; None is an error.
SCALARS: tuple[tuple[str, object], ...] = (
    ("a", "a"), ("1", 1), ("0", 0), ("-1", -1), ("+5", 5), ("010", 8), ("0o17", 15), ("0x1F", 31), ("0b11", 3),
    ("-0b1", -1), ("-0x1", -1), ("+0x1", 1), ("0X1", 1), ("0B1", 1), ("0O7", 7), ("1_000", 1000), ("0x_1F", 31),
    ("0_1", 1), ("1__0", 10), ("_1", "_1"), ("1_", 1), (".1_0", 0.1), ("1e3", 1000), ("1.5", 1.5), (".5", 0.5),
    ("1.", 1), ("1.e2", 100), ("+.5", 0.5), ("-.5", -0.5), (".e3", ".e3"), ("1.5e", "1.5e"), ("08", 8),
    ("12e03", 12000), ("1e999", "1e999"), ("0b2", "0b2"), ("0x", "0x"), ("++1", "++1"), ("1:30", "1:30"),
    ("2001-01-01", "2001-01-01"), ("100m", "100m"), ("1Gi", "1Gi"), ("-0", 0), ("1e-5", 1e-05), ("1E+2", 100),
    ("9223372036854775808", 9223372036854775808), ("18446744073709551615", 18446744073709551615),
    ("18446744073709551616", 18446744073709551616.0), ("-9223372036854775809", -9223372036854775809.0),
    ("yes", True), ("y", True), ("On", True), ("N", False), ("off", False), ("True", True), ("tRUE", "tRUE"),
    ("null", None), ("~", None), ("", None), ("Null", None), ("nULL", "nULL"), ('"yes"', "yes"), ("'1'", "1"),
    ("!!str 3", "3"), ('!!int "3"', 3), ("!!float 3", 3.0), ('!!bool "yes"', True), ("!!foo 3", "3"), ("=", "="),
)  # fmt: skip
REFUSED_SCALARS = (".inf", ".nan", "-.inf", "!!int x", "!!null x", "*a", "@x", "`x", "%x", '"open')

# The same for keys: the text and the key that JSON gets.
KEYS = (
    ("a", "a"), ("1", "1"), ("1.5", "1.5"), ("yes", "true"), ("n", "false"), ('"x"', "x"), ("!!str d", "d"),
    ("010", "8"), ("1e21", "1e+21"), ("1e7", "1e+07"), ("123456.0", "123456"), ("0.1", "0.1"), ("1e-7", "1e-07"),
    ("3.14159265358979", "3.1415927"), ("1e40", ".inf"), (".inf", ".inf"), ("2001-01-01", "2001-01-01"),
    ("-1.5", "-1.5"),
)  # fmt: skip
REFUSED_KEYS = ("null", "~", "[a]", "{a: 1}", "9223372036854775808")

# Whole documents and the JSON that Kubernetes makes of them.
DOCUMENTS: tuple[tuple[str, object], ...] = (
    ("a: 1\na: 2\n", {"a": 2}),
    ("a: 1\na:\n", {"a": None}),
    ("b: &b {x: 1, z: 2}\nc: {<<: *b, x: 3}\n", {"b": {"x": 1, "z": 2}, "c": {"x": 3, "z": 2}}),
    ("y: 1\n", {"true": 1}),
    ("b: &b {x: 1}\nc: {x: 3, <<: *b}\n", {"b": {"x": 1}, "c": {"x": 1}}),
    ("b: &b {x: 1}\nd: &d {x: 2}\nc: {<<: [*b, *d]}\n", {"b": {"x": 1}, "d": {"x": 2}, "c": {"x": 1}}),
    ("a: &a 1\nb: *a\na2: &a 2\nc: *a\n", {"a": 1, "b": 1, "a2": 2, "c": 2}),
    ("a: &a\n- 1\n- &a\n  - 2\nb: *a\n", {"a": [1, [2]], "b": [2]}),
    ("a: |\n  ---\n  text\n", {"a": "---\ntext\n"}),
    ('"<<": 1\n', {"<<": 1}),
    ("? a\n: 1\n", {"a": 1}),
    ("- 1\n- [2]\n", [1, [2]]),
)  # fmt: skip
REFUSED_DOCUMENTS = ("<<: 1\n", "a: &a [*a]\n", "a: [\n", "a: b: c\n", "\tx: 1\n", "a: 'x\n")
