#!/bin/sh
# What the lab takes from k3s's sources and documents, tried on a node on which it runs: the checklist of docs/k3s.md,
# whose numbers stand in front. Changes nothing. Argument: the release (v1.34.12+k3s1).
# Output: "yes N WHAT" or "NO N WHAT" with what was seen below; exit status 1 when there was any NO.
set -u
LC_ALL=C
export LC_ALL
release=$1
k3s=/opt/lab/bin/k3s
data=/var/lib/rancher/k3s
credentials=/opt/lab/credentials
failed=0

# Arguments: number, what, then a command that says yes by its exit status.
check() {
    what="$1 $2"
    shift 2
    if seen=$("$@" 2>&1); then
        echo "yes $what"
    else
        failed=1
        echo "NO $what"
        echo "$seen" | head -n 20 | sed 's/^/    /'
    fi
}

kubectl() {
    "$k3s" kubectl --cache-dir=/run/lab/kubectl --kubeconfig=/etc/rancher/k3s/k3s.yaml "$@"
}

kubelet() {
    curl --silent --show-error --fail --max-time 20 --cacert "$credentials/ca.crt" --cert "$credentials/reader.crt" \
        --key "$credentials/reader.key" "https://127.0.0.1:10250$1"
}

says() {
    wanted=$1
    shift
    text=$("$@" 2>&1)
    echo "$text"
    echo "$text" | grep -qE -e "$wanted"
}

lacks() {
    unwanted=$1
    shift
    text=$("$@" 2>&1)
    echo "$text"
    ! echo "$text" | grep -qE -e "$unwanted"
}

loopback() {
    text=$(ss --listening --tcp --numeric --no-header)
    echo "$text"
    echo "$text" | grep -qE '127\.0\.0\.1:6443 ' && echo "$text" | grep -qE '127\.0\.0\.1:10250 ' &&
        ! echo "$text" | awk '{ print $4 }' | grep -E ':(6443|6444|10250)$' | grep -v '^127\.0\.0\.1:'
}

same_gates() {
    kubectl get --raw /metrics | grep '^kubernetes_feature_enabled{' | sort >/run/lab/gates-api
    kubelet /metrics | grep '^kubernetes_feature_enabled{' | sort >/run/lab/gates-kubelet
    [ -s /run/lab/gates-api ] && diff /run/lab/gates-api /run/lab/gates-kubelet
    result=$?
    rm -f /run/lab/gates-api /run/lab/gates-kubelet
    return "$result"
}

summary_by_python() {
    python3 -B -c '
import sys
sys.path.insert(0, "/opt/lab/node-scripts")
from labnode import Summary
found = Summary("https://127.0.0.1:10250", "/opt/lab/credentials").read()
sys.exit(found.get("error"))'
}

klog_lines() {
    text=$(journalctl -u k3s -o short-unix --no-pager |
        grep -E '^[0-9]{10}\.[0-9]{6} [^ ]+ k3s\[[0-9]+\]: [IWEF][0-9]{4} ')
    echo "$text" | tail -n 2
    [ -n "$text" ]
}

pod_slices() {
    ls /sys/fs/cgroup/kubepods.slice
    [ -d /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice ] && [ ! -e /sys/fs/cgroup/kubepods ]
}

restarts() {
    says '^NRestarts=0$' systemctl show k3s --property=NRestarts
}

main() {
    check 1 "k3s --version names the release" says "^k3s version $(echo "$release" | sed 's/[.+]/\\&/g') \\(" \
        "$k3s" --version
    check 2 "the link named ctr acts as ctr" says 'lab\.local/busybox:1' /opt/lab/bin/ctr --address \
        /run/k3s/containerd/containerd.sock -n k8s.io images list -q
    check 3 "runc says its version" says '^runc version [0-9]+\.[0-9]+\.[0-9]+' "$data/data/current/bin/runc" --version
    check 4 "containerd says its version" says 'v?[0-9]+\.[0-9]+\.[0-9]+' "$data/data/current/bin/containerd" --version
    check 5 "the unit has not restarted" restarts
    check 6 "API server and kubelet listen on loopback only" loopback
    check 7 "the kubelet takes the administrator's certificate" says '"kubeletconfig"' kubelet /configz
    check 8 "the kubelet's cgroup driver is systemd" says '"cgroupDriver":"systemd"' kubelet /configz
    check 9 "the drop-in keeps k3s's own thresholds for the disk" says \
        '"evictionHard":\{"imagefs.available":"5%","memory.available":"2Gi","nodefs.available":"5%"\}' kubelet /configz
    check 10 "the transition period is the lab's" says '"evictionPressureTransitionPeriod":"30s"' kubelet /configz
    check 11 "-v of config.yaml is the kubelet's too" says '"verbosity":3' kubelet /configz
    check 12 "both components show the same gates" same_gates
    check 13 "the stages' programs reach the kubelet with this python3" summary_by_python
    check 14 "the journal of unit k3s has klog lines with Unix times" klog_lines
    check 15 "pods are below kubepods.slice" pod_slices
    check 16 "no pod but the lab's is there" lacks 'coredns|traefik|svclb|metrics-server|local-path|helm' \
        kubectl get pods --all-namespaces --no-headers
    check 17 "the sandboxes are made of the lab's image" says 'lab\.local/busybox' \
        cat "$data/agent/etc/containerd/config.toml"
    check 18 "no taint is left on the node" says '^$' kubectl get node node -o 'jsonpath={.spec.taints[*].key}'
    return "$failed"
}

main </dev/null
