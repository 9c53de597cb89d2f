#!/bin/sh
# What this node is, as named sections. The lab reads it back instead of trusting what it sent.
set -u
echo "lab node-facts 1"
section() {
    echo "== $1"
    shift
    "$@" 2>&1 || echo "(exit $?)"
}
section kernel uname -r
section cpu-model sed -n 's/^model name[[:space:]]*: //p;/^model name/q' /proc/cpuinfo
section cpus nproc
section memory-kib awk '/^MemTotal:/ {print $2}' /proc/meminfo
section swap-kib awk '/^SwapTotal:/ {print $2}' /proc/meminfo
section cgroup-type stat -f -c %T /sys/fs/cgroup
section psi sh -c '[ -r /proc/pressure/cpu ] && echo yes || echo no'
section containerd containerd --version
section runc runc --version
section kubelet /opt/lab/bin/kubelet --version
section kubelet-sha256 sha256sum /opt/lab/bin/kubelet
echo "== end"
