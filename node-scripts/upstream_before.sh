#!/bin/sh
# Write down what the machine is before Kubernetes is installed on it, once, for upstream_remove.sh to restore; refuse
# a machine that has what the lab would have to mix with. The lab sends this text to `sh -s`; it reads no input.
# Output: "saved", "saved before", or "refused: PATH" for each obstacle with exit status 3.
set -u
LC_ALL=C
export LC_ALL
before=/opt/lab/before

# What nobody but an installation of Kubernetes, or an earlier one of the lab, has.
obstacles() {
    for path in /var/lib/kubelet /sys/fs/cgroup/kubepods.slice /etc/lab /var/lib/lab; do
        [ -e "$path" ] && echo "$path"
    done
    for unit in kubelet containerd etcd apiserver scheduler controller-manager; do
        path=/etc/systemd/system/lab-$unit.service
        [ -e "$path" ] && echo "$path"
    done
    for path in /opt/lab/* /opt/lab/.[!.]*; do
        case $path in
            /opt/lab/bin | /opt/lab/node-scripts | /opt/lab/out | /opt/lab/before.part) ;;
            *) [ -e "$path" ] && echo "$path" ;;
        esac
    done
}

# What the kubelet sets for the whole machine (pkg/kubelet/cm/container_manager_linux.go).
sysctls() {
    for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
        kernel/keys/root_maxbytes; do
        if [ -r "/proc/sys/$key" ]; then
            echo "$key $(cat "/proc/sys/$key")"
        fi
    done
}

absent() {
    for path in /var/log/pods /var/log/containers /usr/libexec/kubernetes /run/containerd/s /run/containerd /run/netns \
        /sys/module/overlay; do
        [ -e "$path" ] || echo "$path"
    done
}

# KUBE-* chains as "tool table chain". A legacy table is only read when the kernel has it: reading would load it.
chains() {
    for tool in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
        command -v "$tool-save" >/dev/null || continue
        case $tool in
            iptables-legacy) [ -s /proc/net/ip_tables_names ] || continue ;;
            ip6tables-legacy) [ -s /proc/net/ip6_tables_names ] || continue ;;
        esac
        "$tool-save" 2>/dev/null | awk -v tool="$tool" '
            /^\*/ { table = substr($1, 2) }
            /^:KUBE-/ { print tool, table, substr($1, 2) }'
    done
}

# An earlier try whose connection was lost may still be at it. The folder is there before and after.
alone() {
    exec 9</etc/systemd/system
    flock 9
}

main() {
    alone
    if [ -e "$before" ]; then
        echo "saved before"
        return 0
    fi
    found=$(obstacles)
    if [ -n "$found" ]; then
        echo "$found" | sed 's/^/refused: /'
        return 3
    fi
    set -e
    rm -rf "$before.part"
    mkdir -p "$before.part"
    sysctls >"$before.part/sysctls"
    absent >"$before.part/absent"
    chains >"$before.part/chains"
    cat /sys/fs/cgroup/cgroup.subtree_control >"$before.part/controllers"
    mv "$before.part" "$before"
    echo "saved"
}

main </dev/null
