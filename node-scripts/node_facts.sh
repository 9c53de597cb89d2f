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
section containerd containerd --version
section runc runc --version
section kubelet /opt/lab/bin/kubelet --version
section kubelet-sha256 sha256sum /opt/lab/bin/kubelet
echo "== end"
