#!/bin/sh
# What a node with k3s is, as named sections: those of node_facts.sh, in the same form, then what k3s says of itself. The
# lab reads it back instead of trusting what it sent.
set -u
bin=/var/lib/rancher/k3s/data/current/bin
k3s=/opt/lab/bin/k3s
credentials=/opt/lab/credentials
gates='^kubernetes_feature_enabled{'
echo "lab node-facts 1"
section() {
    echo "== $1"
    shift
    "$@" 2>&1 || echo "(exit $?)"
}
# The kubelet is a part of k3s, which names the version of both.
kubelet_version() {
    "$k3s" --version | sed -n 's/^k3s version \(v[^ ]*\).*/Kubernetes \1/p'
}
# What these two give has no line end of its own.
api() {
    "$k3s" kubectl --cache-dir=/run/lab/kubectl --kubeconfig=/etc/rancher/k3s/k3s.yaml --request-timeout=20s \
        get --raw "$1" && echo
}
kubelet() {
    curl --silent --show-error --fail --max-time 20 --cacert "$credentials/ca.crt" --cert "$credentials/reader.crt" \
        --key "$credentials/reader.key" "https://127.0.0.1:10250$1" && echo
}
api_gates() {
    api /metrics | grep "$gates"
}
kubelet_gates() {
    kubelet /metrics | grep "$gates"
}
section kernel uname -r
section cpu-model sed -n '/^model name/{s/^[^:]*: *//p;q;}' /proc/cpuinfo
section cpus nproc
section memory-kib sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo
section swap-kib sed -n 's/^SwapTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo
section cgroup-type stat -f -c %T /sys/fs/cgroup
section boot-id cat /proc/sys/kernel/random/boot_id
section cmdline cat /proc/cmdline
section units systemctl list-units --type=service --state=running --plain --no-legend --no-pager
section timers systemctl list-timers --plain --no-legend --no-pager
section processes ps -e -o comm=
section psi sh -c '[ -r /proc/pressure/cpu ] && echo yes || echo no'
section containerd "$bin/containerd" --version
section runc "$bin/runc" --version
section kubelet kubelet_version
section kubelet-sha256 sha256sum "$k3s"
section k3s "$k3s" --version
section k3s-unit systemctl show k3s --property=ActiveState --property=NRestarts --property=ExecMainStartTimestamp
section configz kubelet /configz
section api-version api /version
section gates-apiserver api_gates
section gates-kubelet kubelet_gates
echo "== end"
