"""A campaign of damaged inputs against the scan: ``python -m tests.fuzz_scan N [SEED]`` (default 100,000 and 1).

Each input is several documents, some damaged, and a good one at the end. It fails when reading or judging raises
anything, takes longer than LIMIT_S of processor time, loses the last document, or names a line that is not there. Every
second input is read with limits so small that the ways for long documents are taken. What failed is kept in
fuzz-failures/ and the exit code is 1.
"""

from __future__ import annotations

import io
import json
import random
import resource
import signal
import sys
import time
from pathlib import Path

from lab.model import ParseError
from lab.scan import chunks, documents, json_stream
from lab.scan.findings import findings_of
from lab.scan.records import Item, Problem
from lab.scan.templates import template_findings
from lab.scan.workloads import TooManyNodes
from tests import scan_texts as texts

LIMIT_S = 10
MEMORY_LIMIT_KIB = 300 << 10
LAST = b"\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: last}\nspec: {containers: [{name: a}], resources: {}}\n"

SEEDS = [
    texts.POD, texts.DEPLOYMENT, texts.HARMLESS, *(text for text, _ in texts.DOCUMENTS), *texts.REFUSED_DOCUMENTS,
    json.dumps({"kind": "List", "items": [{"kind": "Pod", "spec": {"resources": {}, "containers": []}}] * 3}, indent=1),
    '{"kind": "PodList", "items": [{"spec": {"resources": {}}}]}\n{"a": 1}\n',
    "kind: List\nitems:\n- &p\n  kind: Pod\n  spec: {resources: {}, containers: [{name: a}]}\n- *p\n",
    "spec:\n  containers: []\n  resources: {{ toYaml .Values.x }}\n", "%YAML 1.1\n---\na: 1\n",
]  # fmt: skip
TOKENS = [
    b"---\n", b"...\n", b"\n", b" ", b"  ", b"\t", b": ", b"- ", b"? ", b"{", b"}", b"[", b"]", b",", b'"', b"'",
    b"|\n", b">-\n", b"#", b"&a ", b"*a", b"<<: ", b"!!int ", b"!!binary ", b"!x ", b"%YAML 1.1\n", b"\0", b"\xff",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\xc2\x85", b"\xe2\x80\xa8", b"\\u0000", b"\\ud800", b"resources",
    b"containers", b"items", b"kind", b"null", b"1e9", b"9" * 400, b"{{ with .x }}", b"{{- end }}", b"[" * 300,
    b"- " * 300, b"{a: " * 300, b'{"a":' * 1200, b"x" * 2000, b"&a [*a]", b"requests: {cpu: x}",
]  # fmt: skip


SMALL = {(chunks, "MAX_OBJECT_BYTES"): 256, (chunks, "BLOCK"): 64, (json_stream, "MAX_OBJECT_BYTES"): 256,
         (json_stream, "_LOW"): 16, (json_stream, "_MORE"): 64}  # fmt: skip
USUAL = {(module, name): getattr(module, name) for module, name in SMALL}


def damaged(rng: random.Random, text: bytes) -> bytes:
    """The text with some bytes changed, removed, doubled, or replaced by what is special in YAML or JSON."""
    data = bytearray(text)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        stop = min(len(data), at + rng.choice((0, 1, 2, 10)))
        action = rng.randrange(4)
        if action == 0:
            data[at:stop] = rng.choice(TOKENS)
        elif action == 1:
            del data[at:stop]
        elif action == 2:
            data[at:at] = data[at:stop] * rng.choice((1, 2, 50))
        else:
            data[at:stop] = bytes(rng.randrange(256) for _ in range(stop - at))
    return bytes(data)


def make_input(rng: random.Random) -> bytes:
    """Several documents and the last one."""
    parts = [damaged(rng, rng.choice(SEEDS).encode()) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.2:
        parts.append(b"".join(rng.choice(TOKENS) for _ in range(rng.randint(1, 30))))
    # Where the last separator does not stand at the beginning of a line, it is none.
    return rng.choice((b"\n---\n", b"\n", b"")).join(parts) + LAST


def check(data: bytes) -> str | None:
    """What is wrong with how an input is read, None when nothing is."""
    last_line = data.count(b"\n") + 1
    names = []
    for found in documents.read_stream(io.BytesIO(data), "f"):
        if isinstance(found, Problem):
            if not 1 <= found.line <= last_line + data.count(b"\r") + data.count(b"\xc2\x85") + data.count(b"\xe2\x80"):
                return f"a line that is not there: {found}"
            continue
        names.append(name_of(found))
        try:
            for finding in findings_of(found, minor=36):
                json.dumps(finding.as_json())
        except (ParseError, TooManyNodes):
            continue
    template_findings(data.decode(errors="replace"), "f")
    return None if names and names[-1] == "last" else "the last document is lost"


def name_of(found: Item) -> object:
    """metadata.name, None where there is none."""
    value = found.value
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return metadata.get("name") if isinstance(metadata, dict) else None


def main(argv: list[str]) -> int:
    """Run the campaign."""
    count = int(argv[0]) if argv else 100_000
    seed = int(argv[1]) if len(argv) > 1 else 1
    failures = 0
    slowest = 0.0
    signal.signal(signal.SIGVTALRM, _too_long)
    for number in range(count):
        data = make_input(random.Random(f"{seed}/{number}"))
        for (module, name), value in (SMALL if number % 2 else USUAL).items():
            setattr(module, name, value)
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        start = time.process_time()
        try:
            wrong = check(data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong = f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        slowest = max(slowest, time.process_time() - start)
        if wrong is not None:
            failures += 1
            path = Path("fuzz-failures") / f"{seed}-{number}.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            print(f"{path}: {wrong[:300]}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{count} inputs, seed {seed}: {failures} failures, slowest {slowest:.2f} s, {memory >> 10} MiB")
    return 1 if failures or memory > MEMORY_LIMIT_KIB else 0


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
