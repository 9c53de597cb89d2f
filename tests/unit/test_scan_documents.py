from __future__ import annotations

import errno
import io
import json
import math
import os
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.scan import compose, documents, json_stream
from lab.scan.chunks import BLOCK, Splitter
from lab.scan.records import MAX_DEPTH, MAX_OBJECT_BYTES, Item, Problem, ReadError
from tests import scan_texts as texts


def read(data: bytes | str):
    raw = data.encode() if isinstance(data, str) else data
    return list(documents.read_stream(io.BytesIO(raw), "f"))


def values(data: bytes | str):
    return [each.value for each in read(data) if isinstance(each, Item)]


def problems(data: bytes | str):
    return [(each.line, each.text) for each in read(data) if isinstance(each, Problem)]


def lines(data: bytes | str):
    return [each.place.line() for each in read(data) if isinstance(each, Item)]


# --- YAML as Kubernetes reads it --------------------------------------------------------------------------------------


def test_scalars_are_read_as_kubernetes_reads_them():
    got = {text: values(f"k: {text}\n")[0]["k"] for text, _ in texts.SCALARS}

    assert got == dict(texts.SCALARS)
    assert all(isinstance(got[text], bool) == isinstance(value, bool) for text, value in texts.SCALARS)


@pytest.mark.parametrize("text", texts.REFUSED_SCALARS)
def test_scalars_that_kubernetes_refuses_are_problems(text):
    assert len(problems(f"k: {text}\n")) == 1


def test_keys_become_text_as_in_kubernetes():
    assert [list(values(f"{text}: 1\n")[0]) for text, _ in texts.KEYS] == [[key] for _, key in texts.KEYS]


@pytest.mark.parametrize("text", texts.REFUSED_KEYS)
def test_keys_that_json_cannot_have_are_problems(text):
    assert len(problems(f"a: 1\n{text}: 1\n")) == 1


@pytest.mark.parametrize(("text", "value"), texts.DOCUMENTS)
def test_documents_are_read_as_kubernetes_reads_them(text, value):
    assert values(text) == [value]
    assert problems(text) == []


@pytest.mark.parametrize("text", texts.REFUSED_DOCUMENTS)
def test_documents_that_kubernetes_refuses_are_problems(text):
    assert len(problems(text)) == 1


def test_pyyamls_own_parser_gives_the_same(monkeypatch):
    whole = "".join(f"---\n{text}" for text in (texts.POD, texts.DEPLOYMENT, *(text for text, _ in texts.DOCUMENTS)))
    fast = values(whole)
    monkeypatch.setattr(documents, "_PARSER", documents._SlowParser)

    assert values(whole) == fast
    assert len(fast) == 2 + len(texts.DOCUMENTS)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_documents_are_cut_at_separators_only():
    text = "a: |\n  x\n  ---\n  y\n--- # comment\nb: '--- '\n---\tc\n---x: 1\n...\n---\n"

    assert values(text) == [{"a": "x\n---\ny\n"}, {"b": "--- "}]
    assert problems(text)[0][0] in (7, 8, 9)


def test_a_bad_document_costs_only_itself_and_is_told_by_line():
    text = "a: 1\n---\nb: [\n---\nc: 1\n--- {\n---\nd: \0\n---\ne: \xff\n---\nf: 1\n".encode("latin-1")

    assert values(text) == [{"a": 1}, {"c": 1}, {"f": 1}]
    # An open bracket is noticed where the document ends.
    assert [line for line, _ in problems(text)] == [4, 7, 8, 10]


def test_directives_belong_to_the_document_after_them():
    assert values("%YAML 1.1\n---\na: 1\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert lines("# c\n%YAML 1.1\n---\na: 1\n---\nb: 2\n") == [4, 6]


def test_what_follows_the_end_of_a_document_without_a_separator_is_told():
    assert values("a: 1\n...\nb: 2\n---\nc: 3\n") == [{"a": 1}, {"c": 3}]
    assert problems("a: 1\n...\nb: 2\n---\nc: 3\n")[0][0] == 3
    assert values("a: 1\n...\n---\nc: 3\n") == [{"a": 1}, {"c": 3}]


@pytest.mark.parametrize("directive", ["%", "%YAML 9.9", "%YAML 1.1\n%YAML 1.1", "%TAG ! x", "%FOO"])
def test_a_bad_directive_costs_only_itself(directive):
    assert values(f"a: 1\n---\n{directive}\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("text", ["", "\n\n", "---\n", "---\n---\n---", "# only\n# comments\n", "null\n", "\ufeff"])
def test_nothing_is_no_object_and_no_problem(text):
    assert read(text) == []


def test_a_byte_order_mark_is_passed():
    assert values("\ufeffa: 1\n") == [{"a": 1}]
    assert values('\ufeff{"a": 1}') == [{"a": 1}]


def test_windows_line_ends():
    assert values("a: 1\r\n---\r\nb: 2\r\n") == [{"a": 1}, {"b": 2}]


def test_lists_give_their_items():
    text = "apiVersion: v1\nitems:\n- kind: Pod\n  x: 1\n- kind: Pod\n  x: 2\nkind: List\nmetadata: {}\n"

    assert [value["x"] for value in values(text)] == [1, 2]
    assert lines(text) == [3, 5]
    assert values(json.dumps({"kind": "List", "items": []})) == []


@pytest.mark.parametrize("dump", [json.dumps, lambda value: "kind: PodList\nitems: [{a: 1}]\n"])
def test_items_of_a_typed_list_have_the_kind_of_their_list(dump):
    [item] = read(dump({"kind": "PodList", "items": [{"a": 1}]}))

    assert (item.kind, item.value) == ("Pod", {"a": 1})


PODS = [{"metadata": {"name": name}, "spec": {"resources": {}}} for name in "ab"]


@pytest.mark.parametrize("dump", [lambda value: json.dumps(value, indent=1, sort_keys=True), yaml.safe_dump])
@pytest.mark.parametrize(("kind", "implied"), [("PodList", "Pod"), ("List", None)])
def test_a_list_that_names_its_kind_after_its_items_gives_them_too(dump, kind, implied):
    text = dump({"apiVersion": "v1", "items": PODS, "kind": kind})
    found = read(text)

    assert [(each.value, each.kind) for each in found] == [(pod, implied) for pod in PODS]
    marked = [number for number, line in enumerate(text.split("\n"), 1) if "resources" in line]
    assert [each.place.line_of(("spec", "resources")) for each in found] == marked


@pytest.mark.parametrize(
    "text",
    [
        "kind: PodList\nitems: &all\n- spec:\n    resources: {}\n",
        "x: &all\n- spec:\n    resources: {}\nkind: PodList\nitems: *all\n",
        "x: &base\n  items:\n  - spec:\n      resources: {}\n<<: *base\nkind: PodList\n",
    ],
)
def test_a_list_whose_items_are_anchored_gives_them(text):
    [found] = read(text)

    assert (found.value, found.kind) == ({"spec": {"resources": {}}}, "Pod")
    assert "resources" in text.split("\n")[found.place.line_of(("spec", "resources")) - 1]


@pytest.mark.parametrize("text", ['{"kind": "List", "items": {"a": 1}}', "kind: List\nitems: {a: 1}\n"])
def test_items_of_a_list_that_are_no_list_are_a_problem(text):
    assert len(problems(text)) == 1


def test_of_items_that_stand_twice_the_last_hold():
    assert values('{"items": [{"a": 1}], "items": [{"a": 2}], "kind": "PodList"}') == [{"a": 2}]
    assert values("items: [{a: 1}]\nitems: &x [{a: 2}]\nkind: PodList\n") == [{"a": 2}]
    assert values("items: &x [{a: 1}]\nitems: [{a: 2}]\nkind: PodList\n") == [{"a": 2}]


@pytest.mark.parametrize("module", [compose, json_stream])
def test_more_items_than_are_held_are_a_problem_and_not_silence(module, monkeypatch):
    value = {"items": [{}] * 4, "kind": "PodList"}
    monkeypatch.setattr(module, "MAX_COLLECTIONS", 4)
    assert len(values(yaml.safe_dump(value) if module is compose else json.dumps(value))) == 4

    # What is refused as JSON is tried as YAML.
    monkeypatch.setattr(json_stream, "MAX_COLLECTIONS", 3)
    monkeypatch.setattr(compose, "MAX_COLLECTIONS", 3)
    [(_, said)] = problems(yaml.safe_dump(value) if module is compose else json.dumps(value))
    assert "more items" in said or "too many" in said


def test_long_items_before_their_kind_are_a_problem(monkeypatch):
    monkeypatch.setattr(json_stream, "MAX_HELD_CHARACTERS", 100)

    def objects(count):
        pieces = [json.dumps({"items": [{"a": "x" * 60}] * count, "kind": "PodList"}).encode()]
        return list(json_stream.JsonStream(lambda: pieces.pop() if pieces else b"", 1).objects())

    assert len(objects(1)) == 1
    with pytest.raises(ReadError, match="name its kind before"):
        objects(2)


@pytest.mark.parametrize("text", ['{"kind": "Foo", "items": [1, {"a": 2}]}', "kind: Foo\nitems: [1, {a: 2}]\n"])
def test_items_that_are_no_objects_stay_in_theirs(text):
    assert values(text) == [{"kind": "Foo", "items": [1, {"a": 2}]}]


def test_helm_names_the_template():
    item, other = read("---\n# Source: chart/templates/web.yaml\na: 1\n---\nb: 1\n")

    assert (item.source, other.source) == ("chart/templates/web.yaml", None)


def test_lines_of_the_resources_key():
    [pod] = read("# first\n" + texts.POD)
    [as_json] = read(json.dumps(pod.value, indent=1))

    assert pod.place.line_of(("spec", "resources")) == 6
    assert as_json.place.line_of(("spec", "resources")) == 1 + json.dumps(pod.value, indent=1)[
        : json.dumps(pod.value, indent=1).index('  "resources": {}')
    ].count("\n")
    assert as_json.place.line_of(("spec", "nothing")) == as_json.place.line_of(("spec",))


def test_the_line_of_a_merged_key_is_that_of_the_merge():
    [item] = read("base: &b\n  resources: {}\nspec:\n  a: 1\n  <<: *b\n")

    assert item.place.line_of(("spec", "resources")) == 5


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_texts_one_after_another():
    assert values('{"a": 1}{"b": 2}\n{"c": 3}\n---\n[{"d": 4}, {"e": 5}]') == [
        {"a": 1},
        {"b": 2},
        {"c": 3},
        {"d": 4},
        {"e": 5},
    ]


def test_a_bad_line_of_json_costs_only_itself():
    text = '{"a": 1}\n{"b": }\n{"c": 3}\n{"d": "open\n{"e": 5}\n'

    assert values(text) == [{"a": 1}, {"c": 3}, {"e": 5}]
    assert [line for line, _ in problems(text)] == [2, 4]


def test_yaml_that_begins_like_json_is_yaml():
    assert values('{"kind": "List", "items": [{"kind": "A"}, {"kind": C}]}') == [{"kind": "A"}, {"kind": "C"}]
    assert values("{a: 1, b: [x]}\n") == [{"a": 1, "b": ["x"]}]
    assert values('{"a": 1,}\n') == [{"a": 1}]


@pytest.mark.parametrize("text", ['{"a": "x"}x', '{"a" 1}', '{"a": "\\ud8"}', "[1, 2", '{"a": .inf}'])
def test_what_is_no_json_and_no_yaml_is_a_problem(text):
    assert len(problems(text)) == 1


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "9" * 5000 + "x"])
def test_what_json_would_refuse_is_what_yaml_makes_of_it(text):
    assert values(f'{{"a": {text}}}') == [{"a": text}]


def test_items_before_an_error_in_a_list_stand():
    text = '{"kind": "List", "items": [{"kind": "A"}, {"kind": "B"}, {"kind": "C" "D"}]}'

    assert values(text) == [{"kind": "A"}, {"kind": "B"}]
    assert len(problems(text)) == 1


def test_json_that_is_not_utf8_is_told_and_read():
    text = b'{"a": 1,\n"b": "\xff"}'

    assert values(text) == [{"a": 1, "b": "\ufffd"}]
    assert problems(text) == [(2, "bytes that are not UTF-8")]


class _Dripping(io.RawIOBase):
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__()
        self._data, self._step, self._at = data, step, 0

    def read(self, size=-1):
        piece = self._data[self._at : self._at + min(self._step, size)]
        self._at += len(piece)
        return piece


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cuts_do_not_depend_on_how_the_bytes_come(data):
    pieces = data.draw(
        st.lists(st.sampled_from(["---", "\n", "-", " ", "a: 1", "\n---\n", "é", "#", "|", "---x", "%Y"]))
    )
    raw = "".join(pieces).encode()
    step = data.draw(st.integers(1, 9))
    whole = [(chunk.line, chunk.text) for chunk in Splitter(io.BytesIO(raw)).chunks()]

    assert [(chunk.line, chunk.text) for chunk in Splitter(_Dripping(raw, step)).chunks()] == whole


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=6,
    ),
    st.integers(1, 7),
)
def test_a_list_is_read_item_by_item_as_the_whole_text_is(items, step):
    objects = [{"kind": "X", "v": item} for item in items]
    text = json.dumps({"kind": "List", "items": objects}, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    stream = json_stream.JsonStream(lambda: pieces.pop(0) if pieces else b"", 1)

    found = list(stream.objects())
    assert [each.value for each in found] == json.loads(text.decode("utf-8", "replace"))["items"]
    assert [each.place.line_of(("v",)) for each in found] == [each.place.line() + 2 for each in found]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_long_list_is_read_item_by_item_and_the_rest_follows(monkeypatch):
    item = "- kind: Pod\n  a: " + "x" * 5000 + "\n"
    count = MAX_OBJECT_BYTES * 2 // len(item)
    text = "kind: List\nitems:\n" + item * count + "---\nlast: 1\n"

    found = read(text)
    assert len(found) == count + 1
    assert found[-1].value == {"last": 1}
    assert found[-1].place.line() == 2 + 2 * count + 2
    assert found[-2].place.line() == 2 + 2 * (count - 1) + 1


def test_a_long_json_list_keeps_lines(monkeypatch):
    item = '{"kind": "Pod",\n"a": "' + "x" * 5000 + '"},\n'
    count = MAX_OBJECT_BYTES * 2 // len(item)
    text = '{"kind": "List",\n"items": [' + item * count + '{"kind": "Pod", "b": 1}]}\n---\nlast: 1\n'

    found = read(text)
    assert len(found) == count + 2
    assert found[-2].place.line() == 2 + 2 * count
    assert found[-1].place.line() == 2 + 2 * count + 2


@pytest.mark.parametrize("kind", ["plain", "quoted", "json", "comment", "blanks"])
def test_what_is_larger_than_an_object_is_refused_and_the_rest_read(kind):
    size = MAX_OBJECT_BYTES + 2 * BLOCK
    middle = {
        "plain": b"a: " + b"x" * size,
        "quoted": b'a: "' + b"x\n" * (size // 2),
        "json": b'{"a": "' + b"x" * size + b'"}',
        "comment": b"#\n" * (size // 2),
        "blanks": b"a:" + b" " * size + b"1",
    }[kind]
    data = b"a: 1\n---\n" + middle + b"\n---\nb: 2\n"

    assert values(data) == [{"a": 1}, {"b": 2}]
    assert len(problems(data)) == 1


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{" * 5000, "- " * 5000, '{"a":' * 5000, "? " * 5000, "a: " + "[" * 300 + "]" * 300]
)
def test_deep_nesting_is_refused(text):
    assert len(problems(f"---\n{text}\n---\na: 1\n")) >= 1
    assert values(f"---\n{text}\n---\na: 1\n") == [{"a": 1}]


def test_an_alias_bomb_is_refused_and_small_use_is_not():
    levels = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(8)
    )

    assert [text for _, text in problems(levels)] == ["excessive aliasing"]
    assert values("a: &a [1, 2]\n" + "".join(f"k{n}: *a\n" for n in range(50)))[0]["k49"] == [1, 2]


def test_the_alias_ratio_is_that_of_go_yaml():
    ratios = [compose._allowed_ratio(count) for count in (1, 400_000, 2_200_000, 4_000_000, 10**9)]

    assert [round(ratio, 3) for ratio in ratios] == [0.99, 0.99, 0.545, 0.1, 0.1]


def test_too_many_anchored_values_are_refused():
    text = "".join(f"k{n}: &a{n} [{'1,' * 1000}]\n" for n in range(500))

    assert [found for _, found in problems(text)] == ["more anchored values than a document can need"]


def test_a_template_is_recognised_as_one():
    [problem] = read("a: {{ .Values.x }}\n")

    assert problem.unread == (1, 2)
    assert "unrendered template" in problem.text


@pytest.mark.parametrize("text", ["foo: [ {{ x }\n", "a: {{ x\n", "{{ a: b: }\n"])
def test_two_braces_alone_make_no_template(text):
    [problem] = read(text)

    assert problem.unread is None
    assert "template" not in problem.text


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("a: 1\n---\n\nb: {{ x }}\n---\nc: 1\n", (2, 5)),
        ("kind: List\nitems:\n- kind: A\n  a: 1\n- kind: B\n  b: {{ x }}", (5, 7)),
        ("kind: List\nitems:\n- {kind: A}\n- {kind: B, b: [}\n- {{ x }}\n", (3, 6)),
        ('{"kind": "List", "items": [\n{"kind": "A"},\n{{ x }}]}\n', (1, 4)),
    ],
    ids=["document", "item", "flow-items", "json"],
)
def test_the_unread_part_begins_after_what_was_read(text, unread):
    assert [each.unread for each in read(text) if isinstance(each, Problem)] == [unread]


def test_the_beginning_of_a_stream_is_kept():
    kept = documents.Kept(io.BytesIO(b"abcdefgh"), 5)

    assert [kept.read(3), kept.text, kept.read(), kept.text, kept.read(1)] == [b"abc", b"abc", b"defgh", b"abcde", b""]


class _Broken(io.RawIOBase):
    def read(self, size=-1):
        raise OSError(5, "Input/output error")


def test_a_stream_that_cannot_be_read_is_a_problem_without_a_line():
    [problem] = documents.read_stream(_Broken(), "f")

    assert str(problem) == "f: cannot be read: Input/output error"


def test_directories_are_walked_in_order(tmp_path):
    for name in ("b.yaml", "a/z.yml", "a/x.json", "a/.hidden/y.yaml", "c.txt", "a.yaml/inner.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a: 1\n")
    (tmp_path / "loop").symlink_to(tmp_path)

    names = [str(path.relative_to(tmp_path)) for path in documents.files_in(tmp_path)]
    assert names == ["b.yaml", "a/x.json", "a/z.yml", "a.yaml/inner.yaml"]


def nested(depth, *, braces):
    return '{"a":' * depth + "1" + "}" * depth if braces else "[" * depth + "]" * depth


@pytest.mark.parametrize("braces", [True, False], ids=["objects", "arrays"])
@pytest.mark.parametrize(
    "form",
    ['{{"kind": "A", "a": {}}}', '{{"kind": "List", "items": [{}]}}', '[{}]', "kind: A\na: {}\n"],
    ids=["object", "item", "element", "yaml"],
)
def test_nesting_is_limited_alike_in_json_and_yaml(form, braces):
    assert problems(form.format(nested(MAX_DEPTH, braces=braces))) == []
    [(_, text)] = problems(form.format(nested(MAX_DEPTH + 1, braces=braces)))
    assert "nested too deeply" in text
    assert values(form.format(nested(MAX_DEPTH + 1, braces=braces)) + "\n---\nkind: B\n")[-1] == {"kind": "B"}


def test_many_brackets_are_not_many_levels():
    assert problems(json.dumps({"kind": "A", "a": [[{}] * 3] * 3000, "b": "[" * 3000})) == []


@pytest.mark.parametrize(
    ("data", "number"),
    [
        ("kind: A\n---\nkind: B\n".encode("utf-16"), 2),
        ("kind: A\n".encode("utf-16-le"), 0),
        ('{"kind": "A"}\n'.encode("utf-16-le"), 0),
    ],
    ids=["yaml", "no-mark", "json"],
)
def test_utf_16_is_read_with_a_mark_and_else_a_problem(data, number):
    assert (len(values(data)), bool(problems(data))) == (number, number == 0)


@pytest.fixture
def closed(monkeypatch):
    """Directories of mode 000 cannot be listed, what is in those of mode 600 cannot be looked at, for root neither."""
    iterdir, lstat = Path.iterdir, Path.lstat

    def refuse(path, bits):
        if not stat.S_IMODE(path.stat().st_mode) & bits:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", lambda self: [refuse(self, 0o400), iterdir(self)][1])
    monkeypatch.setattr(Path, "lstat", lambda self: [refuse(self.parent, 0o100), lstat(self)][1])


def test_what_cannot_be_listed_or_looked_at_is_a_problem_and_the_rest_is_given(tmp_path, closed):
    for name in ("a/1.yaml", "b/2.yaml", "c/3.yaml", "d/4.yaml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a: 1\n")
    (tmp_path / "b").chmod(0)
    (tmp_path / "c").chmod(0o600)

    found = [str(each) for each in documents.files_in(tmp_path)]
    (tmp_path / "b").chmod(0o700)
    (tmp_path / "c").chmod(0o700)
    assert found == [
        f"{tmp_path}/a/1.yaml",
        f"{tmp_path}/b: cannot be read: Permission denied",
        f"{tmp_path}/c/3.yaml: cannot be read: Permission denied",
        f"{tmp_path}/d/4.yaml",
    ]


def test_links_and_entries_that_are_no_files_are_problems(tmp_path):
    (tmp_path / "1.yaml").symlink_to("nowhere")
    (tmp_path / "2.yaml").symlink_to("2.yaml")
    os.mkfifo(tmp_path / "3.yaml")
    (tmp_path / "4.yaml").write_text("a: 1\n")
    (tmp_path / "5.yaml").symlink_to("4.yaml")
    (tmp_path / "6.yaml").symlink_to(".")
    (tmp_path / "7.txt").symlink_to("nowhere")

    assert [str(each).removeprefix(f"{tmp_path}/") for each in documents.files_in(tmp_path)] == [
        "1.yaml: cannot be read: a link that leads nowhere",
        f"2.yaml: cannot be read: {os.strerror(errno.ELOOP)}",
        "3.yaml: cannot be read: neither a file nor a directory",
        "4.yaml",
        "5.yaml",
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(
    ["---\n", "a", ": ", "\n", "  ", "- ", "{", "}", "[", "]", ",", '"', "'", "&a ", "*a", "<<: ", "|", ">", "#",
     "\0", "\xff", "!!int ", "!", "%", "@", "\t", "é", "resources", "items", "kind: List\n", "? ", "\\u0041", "\r", "~",
     "1e9", "{{", "0x"]
)).map("".join))  # fmt: skip
def test_any_text_is_read_without_an_error_and_leaves_the_next_document(text):
    data = text.encode("latin-1") + b"\n---\nkind: Last\n"

    found = read(data)
    assert found, "the last document is gone"
    last = [each for each in found if isinstance(each, Item)][-1]
    assert last.value == {"kind": "Last"}
    assert last.place.line() == data.count(b"\n")
    assert all(1 <= each.line <= data.count(b"\n") + 1 for each in found if isinstance(each, Problem))
    assert not any(
        isinstance(each, Item) and isinstance(each.value, float) and math.isnan(each.value) for each in found
    )
