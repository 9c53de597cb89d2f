"""`lab scan`, and the same as a plugin of kubectl: what gets another class on 1.34-1.36 than on 1.37.

Nothing heavy is imported before it is needed: a scan in a commit hook is over in less time than pandas takes to load.
"""

from __future__ import annotations

import bisect
import gc
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from lab import __version__
from lab.cli import console, endings
from lab.cli.help_topics import topic
from lab.cli.scan_output import DocumentOutput, Output, PeopleOutput
from lab.model import LabError, NodeError, ParseError, UsageError
from lab.scan import documents, output
from lab.scan.chunks import Readable
from lab.scan.findings import Finding, findings_of
from lab.scan.records import Item, Problem, ReadError
from lab.scan.runner import RUNNERS, embedded_findings, runner_findings
from lab.scan.templates import MAX_CHARACTERS, template_findings
from lab.scan.versions import minor_of_cluster
from lab.scan.workloads import TooManyNodes

KUBECTL = "kubectl"
"""The context object of a call as ``kubectl lab-qos``."""

STDIN = "-"
HELM_TIMEOUT_S = 300
_MISSING = "there is no such file or directory"
_LONG_TEMPLATE = "a template beyond the first 1 MiB of its file, which is what is read of templates"
_MAX_TEMPLATE_BYTES = 4 * MAX_CHARACTERS
_TEMPLATE_SUFFIXES = (*documents.SUFFIXES, ".tpl")


@dataclass(slots=True)
class _Options:
    """What the flags say."""

    paths: Sequence[str]
    live: bool
    context: str | None
    namespace: str | None
    minor: int | None
    helm: str | None
    values: Sequence[Path]
    templates: bool
    form: Output
    report: output.Report = field(default_factory=output.Report)

    def add(self, findings: Iterable[Finding]) -> None:
        """Count and print findings."""
        for finding in findings:
            self.report.add(finding)
            self.form.finding(finding)

    @property
    def several(self) -> bool:
        """Whether more than one input is named: what one of them lacks is then no reason to drop the others."""
        return len(self.paths) + self.live + (self.helm is not None) > 1


def scan(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files, directories (*.yaml *.yml *.json in them), a runner's config.toml, - for stdin."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Scan a live cluster, read-only.")] = False,
    context: Annotated[str | None, typer.Option("--context", help="kubeconfig context of the live cluster.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only this namespace of the live cluster, or of the files.")
    ] = None,
    cluster_version: Annotated[
        str | None,
        typer.Option("--cluster-version", help="Version that runs today, such as 1.36 (--live reads it itself)."),
    ] = None,
    helm: Annotated[str | None, typer.Option("--helm", help="Render this chart with helm and scan the output.")] = None,
    values: Annotated[list[Path] | None, typer.Option("--values", "-f", help="Values file for --helm.")] = None,
    templates: Annotated[
        bool, typer.Option("--templates", help="Read what is unrendered as templates; findings are possible ones.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
    as_sarif: Annotated[bool, typer.Option("--sarif", help="Print a SARIF 2.1.0 log for code-scanning pages.")] = False,
    promql: Annotated[bool, typer.Option("--promql", help="Print queries for Prometheus, and scan nothing.")] = False,
) -> None:
    """Find pods and templates that get another QoS class on 1.34-1.36 than on 1.37.

    Exit code: 0 nothing is affected, 1 something is (or possibly is), 2 some input could not be read.
    """
    if promql:
        typer.echo(output.promql(), nl=False)
        return
    if as_json and as_sarif:
        raise UsageError("--json and --sarif are two forms of one output: give one of them")
    options = _Options(
        paths=paths or (),
        live=live or (ctx.obj == KUBECTL and not paths and helm is None),
        context=context,
        namespace=namespace,
        minor=None if cluster_version is None else minor_of_cluster(cluster_version),
        helm=helm,
        values=values or (),
        templates=templates,
        form=_form(as_json=as_json, as_sarif=as_sarif),
    )
    _check(options)
    # The objects of a scan die young and in no circles; the collector would only look at them.
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    report = _run(options)
    if not report.objects and not report.problems:
        typer.echo("note: nothing was found to read: no object of YAML or JSON, no runner's configuration", err=True)
    options.form.end(report)
    raise typer.Exit(report.exit_code)


def _form(*, as_json: bool, as_sarif: bool) -> Output:
    if as_json:
        return DocumentOutput(output.json_document(), Finding.as_json, output.json_rest)
    if as_sarif:
        folder = str(Path.cwd())
        return DocumentOutput(
            output.sarif_document(),
            lambda finding: output.sarif_result(finding, folder),
            lambda report: output.sarif_rest(report, __version__, folder),
        )
    return PeopleOutput()


def _check(options: _Options) -> None:
    """UsageError for flags that do not go together, and for empty ones, which would mean more than was meant."""
    empty = {"a file or directory": "" in options.paths, "--namespace": options.namespace == "",
             "--context": options.context == "", "--helm": options.helm == ""}  # fmt: skip
    for name, is_empty in empty.items():
        if is_empty:
            raise UsageError(f"{name} is given as '', which names nothing")
    if not options.paths and not options.live and options.helm is None:
        raise UsageError("nothing to scan: name files, directories or - for stdin, or give --live or --helm CHART")
    if options.context is not None and not options.live:
        raise UsageError("--context names a cluster to read: give --live with it")
    if options.values and options.helm is None:
        raise UsageError("--values are for a chart: give --helm CHART with them")
    if len(options.paths) == 1 and options.paths[0] != STDIN and not options.several and _is_missing(options.paths[0]):
        raise UsageError(f"{options.paths[0]}: {_MISSING}")


def _is_missing(path: str) -> bool:
    """Whether there is nothing of that name; what cannot be looked at is there for all that is known."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _run(options: _Options) -> output.Report:
    """Scan everything that was named."""
    for path in options.paths:
        if path == STDIN:
            _scan_stream(options, sys.stdin.buffer, documents.STDIN)
        elif _is_missing(path):
            options.report.tell(Problem(file=path, line=0, text=_MISSING))
        elif os.path.isdir(path):
            _scan_directory(options, Path(path))
        else:
            _scan_file(options, Path(path))
    try:
        if options.helm is not None:
            _scan_chart(options, options.helm)
    except UsageError as error:
        _give_up(options, f"helm:{options.helm}", error)
    try:
        if options.live:
            _scan_live(options)
    except (UsageError, NodeError) as error:
        _give_up(options, f"cluster {options.context}" if options.context else "cluster", error)
    options.report.minor = options.minor
    options.report.close()
    return options.report


def _give_up(options: _Options, name: str, error: LabError) -> None:
    """An input that cannot be had: a problem, so that the others stand; a wrong flag alone is an error as any other."""
    if isinstance(error, UsageError) and not options.several:
        raise error
    options.report.tell(Problem(file=name, line=0, text=f"{error}; help: {topic(error)}"))


def _scan_directory(options: _Options, folder: Path) -> None:
    suffixes = _TEMPLATE_SUFFIXES if options.templates else documents.SUFFIXES
    for found in documents.files_in(folder, suffixes):
        if isinstance(found, Problem):
            options.report.tell(found)
        else:
            _scan_file(options, found)


def _scan_file(options: _Options, path: Path) -> None:
    """A file by its name: a runner's configuration, a template, or manifests."""
    if path.suffix == ".toml":
        _scan_text(options, path, runner_findings)
    elif path.suffix == ".tpl":
        _scan_text(options, path, template_findings)
    else:
        try:
            stream = path.open("rb", buffering=0)
        except OSError as error:
            options.report.tell(documents.unreadable(path, error))
            return
        with stream:
            _scan_stream(options, stream, str(path))


def _scan_stream(options: _Options, stream: Readable, name: str) -> None:
    """Manifests; the parts that cannot be read and look like templates are read as such where that is asked for."""
    if not options.templates:
        _take(options, documents.read_stream(stream, name))
        return
    kept = documents.Kept(stream, _MAX_TEMPLATE_BYTES)
    unread = _take(options, documents.read_stream(kept, name))
    if not unread:
        return
    report = options.report
    text = kept.text.decode(errors="replace")
    whole = len(text) <= MAX_CHARACTERS and len(kept.text) < _MAX_TEMPLATE_BYTES
    after = text.count("\n", 0, MAX_CHARACTERS) + 1 + whole
    report.objects += len(unread)
    options.add(finding for finding in template_findings(text, name) if _is_inside(finding.line, unread))
    beyond = [max(first, after) for first, stop in unread if stop > after]
    if beyond:
        report.tell(Problem(file=name, line=beyond[0], text=_LONG_TEMPLATE))


def _scan_text(options: _Options, path: Path, find: Any) -> None:
    """A file that is read whole, up to the limit of what such a file can need."""
    report = options.report
    try:
        with path.open("rb") as stream:
            text = stream.read(_MAX_TEMPLATE_BYTES).decode(errors="replace")
        options.add(find(text, str(path)))
        report.objects += find is template_findings or RUNNERS in text
        if find is template_findings and len(text) > MAX_CHARACTERS:
            line = text.count("\n", 0, MAX_CHARACTERS) + 1
            report.tell(Problem(file=str(path), line=line, text=_LONG_TEMPLATE))
    except ReadError as error:
        report.tell(Problem(file=str(path), line=error.line, text=error.text))
    except OSError as error:
        report.tell(documents.unreadable(path, error))


def _is_inside(line: int | None, parts: Sequence[tuple[int, int]]) -> bool:
    """Whether a line is in one of some parts (first line, and the one after the last), which are in order."""
    number = bisect.bisect(parts, line or 0, key=lambda part: part[0])
    return number > 0 and (line or 0) < parts[number - 1][1]


def _scan_chart(options: _Options, chart: str) -> None:
    """Render a chart; UsageError when helm is missing or refuses it."""
    program = shutil.which("helm")
    if program is None:
        raise UsageError("--helm needs helm on PATH; or render elsewhere: helm template CHART | lab scan -")
    flags = [part for path in options.values for part in ("--values", str(path))]
    version = [] if options.minor is None else ["--kube-version", f"1.{options.minor}.0"]
    try:
        done = subprocess.run(
            [program, "template", *flags, *version, "--", "release", chart],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=HELM_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(f"--helm {chart}: helm did not end within {HELM_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise UsageError(f"--helm {chart}: helm template failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
    _scan_stream(options, io.BytesIO(done.stdout), f"helm:{chart}")


def _scan_live(options: _Options) -> None:
    from lab.scan.live import LiveCluster, Unreachable

    cluster = LiveCluster(options.context, options.namespace)
    try:
        if options.minor is None:
            options.minor = cluster.minor()
    except Unreachable:
        raise
    except NodeError as error:
        text = f"the API server's version is not known: {error}; give it by --cluster-version"
        options.report.tell(Problem(file=cluster.name, line=0, text=text))
    try:
        ranges = cluster.limit_ranges()
    except Unreachable:
        raise
    except NodeError as error:
        ranges = {}
        options.report.tell(Problem(file=cluster.name, line=0, text=f"LimitRanges are not counted: {error}"))
    for found in cluster.items():
        if isinstance(found, Problem):
            options.report.tell(found)
            continue
        namespace = (found.value.get("metadata") or {}).get("namespace", "")
        owners = cluster.owners(found.value)
        options.add(_judge(options, found, ranges.get(namespace, ()), live=True, owners=owners))


def _take(options: _Options, found: Iterator[Item | Problem]) -> list[tuple[int, int]]:
    """Judge what was read. Returned are the unread parts that look like templates, where those are asked for."""
    unread = []
    for each in found:
        if isinstance(each, Problem):
            if options.templates and each.unread is not None:
                unread.append(each.unread)
            else:
                options.report.tell(each)
            continue
        options.add(finding for finding in _judge(options, each) if _wanted(options, finding))
    # One document can have several problems.
    return list(dict.fromkeys(unread))


def _wanted(options: _Options, finding: Finding) -> bool:
    return options.namespace is None or finding.namespace in (None, options.namespace)


def _judge(
    options: _Options,
    item: Item,
    ranges: Sequence[Any] = (),
    *,
    live: bool = False,
    owners: tuple[str, ...] | None = None,
) -> list[Finding]:
    """Findings of one object; what cannot be judged becomes a problem. Text that is no mapping counts as no object."""
    report = options.report
    report.objects += isinstance(item.value, dict)
    try:
        found = findings_of(item, minor=options.minor, limit_ranges=ranges, live=live, owners=owners)
        found += embedded_findings(item)
    except TooManyNodes:
        report.tell(Problem(file=item.file, line=item.place.line(), text="an object with too many nodes"))
        return []
    except ParseError as error:
        text = f"a pod spec that cannot be judged: {error}"
        report.tell(Problem(file=item.file, line=item.place.line(), text=text))
        return []
    except ReadError as error:
        report.tell(Problem(file=item.file, line=error.line, text=f"in a ConfigMap: {error.text}"))
        return []
    return found


def run_alone(argv: Sequence[str], *, name: str, obj: str | None = None) -> int:
    """Run the verb as a program of its own, with the exit codes of `lab scan`."""
    app = typer.Typer(name=name, add_completion=False, pretty_exceptions_enable=False)
    app.command()(scan)

    def program() -> object:
        with console.patient_output():
            return app(args=list(argv), prog_name=name, obj=obj, standalone_mode=False)

    return endings.exit_code(program)


def kubectl_plugin() -> None:
    """Entry point of ``kubectl-lab_qos``: ``kubectl lab-qos`` scans the cluster that kubectl talks to."""
    sys.exit(run_alone(sys.argv[1:], name="kubectl lab-qos", obj=KUBECTL))


if __name__ == "__main__":
    sys.exit(run_alone(sys.argv[1:], name="lab scan"))
