#!/bin/sh
# Write down what the machine is before k3s is installed on it, once, for k3s_remove.sh to restore; refuse a machine that
# has what the lab would have to mix with. The lab sends this text to `sh -s`; it reads no input.
# Output: "saved", "saved before", or "refused: PATH" for each obstacle with exit status 3.
set -u
LC_ALL=C
export LC_ALL
before=/opt/lab/k3s-before

# What nobody but an installation of Kubernetes, or an earlier one of the lab, has.
obstacles() {
    for path in /etc/rancher /var/lib/rancher /var/lib/kubelet /run/k3s /run/flannel /sys/fs/cgroup/kubepods.slice \
        /etc/systemd/system/k3s.service /etc/systemd/system/k3s-agent.service /usr/local/bin/k3s /etc/lab /var/lib/lab \
        /sys/class/net/cni0 /sys/class/net/flannel.1; do
        [ -e "$path" ] && echo "$path"
    done
    for path in /opt/lab/* /opt/lab/.[!.]*; do
        case $path in
            /opt/lab/bin | /opt/lab/images | /opt/lab/node-scripts | /opt/lab/out | /opt/lab/k3s-before.part) ;;
            *) [ -e "$path" ] && echo "$path" ;;
        esac
    done
}

# What k3s (pkg/agent/syssetup/setup.go), its kube-proxy and the kubelet (pkg/kubelet/cm/container_manager_linux.go) set
# for the whole machine.
sysctls() {
    for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
        kernel/keys/root_maxbytes net/ipv4/ip_forward net/ipv4/conf/all/forwarding net/ipv4/conf/default/forwarding \
        net/ipv4/conf/all/route_localnet net/ipv6/conf/all/forwarding net/ipv6/conf/default/forwarding \
        net/core/devconf_inherit_init_net net/bridge/bridge-nf-call-iptables net/bridge/bridge-nf-call-ip6tables \
        net/netfilter/nf_conntrack_max net/netfilter/nf_conntrack_tcp_timeout_established \
        net/netfilter/nf_conntrack_tcp_timeout_close_wait; do
        if [ -r "/proc/sys/$key" ]; then
            echo "$key $(cat "/proc/sys/$key")"
        fi
    done
}

absent() {
    for path in /var/log/pods /var/log/containers /usr/libexec/kubernetes /var/lib/cni /etc/cni /opt/cni \
        /run/containerd/s /run/containerd/runc/k8s.io /run/containerd/runc /run/containerd /run/nri \
        /run/netns; do
        [ -e "$path" ] || echo "$path"
    done
}

links() {
    for path in /sys/class/net/*; do
        echo "${path##*/}"
    done
}

modules() {
    sed 's/ .*//' /proc/modules
}

# Every rule and chain as "tool table line". A legacy table is only read when the kernel has it: reading would load it.
rules() {
    for tool in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
        command -v "$tool-save" >/dev/null || continue
        case $tool in
            iptables-legacy) [ -s /proc/net/ip_tables_names ] || continue ;;
            ip6tables-legacy) [ -s /proc/net/ip6_tables_names ] || continue ;;
        esac
        "$tool-save" 2>/dev/null | awk -v tool="$tool" '
            /^\*/ { table = substr($1, 2) }
            /^:/ { print tool, table, $1 }
            /^-A / { print tool, table, $0 }'
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
    links >"$before.part/links"
    modules >"$before.part/modules"
    rules >"$before.part/rules"
    cat /sys/fs/cgroup/cgroup.subtree_control >"$before.part/controllers"
    mv "$before.part" "$before"
    echo "saved"
}

main </dev/null
