"""The Go source of the lab's own main packages and their go.mod files; pure text.

containerd and runc are built as their modules have them, from a go.mod that requires nothing else.

The module ``k8s.io/kubernetes`` (go.mod at its root) replaces its staging modules by local folders, which the
published module does not hold; the same code is published as ``k8s.io/X v0.N.P`` beside each ``v1.N.P``, so
the go.mod written here names those. One main package gives a multi-call binary that goes by its file name.
"""

from __future__ import annotations

import re

from lab.model import ParseError

ETCD_MODULE = "go.etcd.io/etcd/server/v3"
RUNTIME_MODULES = {
    "containerd": "github.com/containerd/containerd/v2",
    "runc": "github.com/opencontainers/runc",
}

_GO_VERSION = re.compile(r"\bgo(\d+)\.(\d+)(?:[.\-\s]|rc|beta|$)")
_MODULE_LINE = re.compile(r"^module[ \t]+\S+.*$", re.MULTILINE)
_STAGING = re.compile(r"([^\s()]+)([ \t]+v\S+)?[ \t]+=>[ \t]+\./staging/src/\S+")
_LOCAL = re.compile(r"^.*=>[ \t]+\.{1,2}/.*$", re.MULTILINE)
_UNWANTED = re.compile(r"^(?:ignore|tool|retract)[ \t]*(?:\([^)]*\)|[^\n(]*)[ \t]*(?://[^\n]*)?\n?", re.MULTILINE)
_PACKAGE_LINE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.~+/-]*$")

HYPERKUBE_MAIN = """\
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": manager.NewControllerManagerCommand,
	"kube-scheduler":          newScheduler,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
	"kubelet":                 newKubelet,
}

func newScheduler() *cobra.Command { return scheduler.NewSchedulerCommand() }

func newKubelet() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }

func main() {
	name := filepath.Base(os.Args[0])
	if name == "hyperkube" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	command, known := components[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s is not a component of this binary\\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
"""

ETCD_MAIN = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


def parse_go_version(text: str) -> tuple[int, int]:
    """Major and minor number from ``go env GOVERSION``: ``go1.26.8``, ``go1.27rc1``, ``devel go1.28-abc``."""
    match = _GO_VERSION.search(text)
    if match is None:
        raise ParseError("no Go version", text)
    return int(match[1]), int(match[2])


def parse_package(line: str) -> str | None:
    """The import path that ``go build -v`` reports as compiled, or None for another line."""
    line = line.strip()
    return line if _PACKAGE_LINE.match(line) else None


def staging_version(version: str) -> str:
    """Version of the staging modules that belong to a Kubernetes version: ``v0.36.3`` for ``v1.36.3``."""
    if not version.startswith("v1."):
        raise ParseError("not a Kubernetes version", version)
    return "v0." + version.removeprefix("v1.")


def rewrite_go_mod(text: str, version: str) -> str:
    """The go.mod of a multi-call binary, from the go.mod of ``k8s.io/kubernetes`` at ``version``.

    The requirements and their versions stay; staging folders become published versions; directives that mean
    something only inside the Kubernetes tree (ignore, tool, retract) go. ParseError when it is another file.
    """
    if len(_MODULE_LINE.findall(text)) != 1:
        raise ParseError("go.mod without exactly one module line", text)
    text, replaced = _STAGING.subn(rf"\1 => \1 {staging_version(version)}", text)
    if replaced == 0:
        raise ParseError("go.mod without a staging module", text)
    local = _LOCAL.search(text)
    if local is not None:
        raise ParseError("go.mod replaces a module by a folder that is not a staging one", local[0])
    text = _UNWANTED.sub("", text)
    head = f"module lab.local/hyperkube\n\nrequire k8s.io/kubernetes {version}"
    return _MODULE_LINE.sub(head, text)


def etcd_go_mod(version: str) -> str:
    """The go.mod of the etcd binary; the go command adds what the server module itself requires."""
    return _requiring("etcd", ETCD_MODULE, version)


def runtime_go_mod(kind: str, version: str) -> str:
    """The go.mod for building ``containerd`` or ``runc`` by package path."""
    return _requiring(kind, RUNTIME_MODULES[kind], version)


def _requiring(name: str, module: str, version: str) -> str:
    return f"module lab.local/{name}\n\ngo 1.25.0\n\nrequire {module} {version}\n"


def runtime_build_words(kind: str, version: str) -> list[str]:
    """Flags and packages of ``go build`` for ``containerd`` or ``runc``.

    runc enters namespaces in C before Go starts (libcontainer/nsenter), so it needs cgo; it is linked statically, to
    run on any distribution. It must know seccomp: the kubelet asks for a profile for every pod's sandbox
    (pkg/kubelet/kuberuntime/kuberuntime_sandbox.go).
    """
    module = RUNTIME_MODULES[kind]
    if kind == "containerd":
        packages = [f"{module}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")]
        return ["-ldflags", f"-s -w -X {module}/version.Version={version}", *packages]
    return ["-tags", "netgo osusergo seccomp", "-ldflags", "-s -w -linkmode external -extldflags -static", module]


def linker_flags(version: str) -> str:
    """``-ldflags`` value that strips symbols and lets each component report ``version``."""
    minor = version.split(".")[1]
    values = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in values.items()]
    return " ".join(flags)
