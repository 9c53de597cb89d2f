#!/bin/sh
# Take everything off a machine that the lab's installation of k3s brought, pods included, and restore what k3s_before.sh
# wrote down. k3s's own k3s-uninstall.sh is not enough: it leaves rules, CNI files, folders and kernel settings, and its
# exit status says nothing. Each step can be repeated; a machine without that record is left alone. The lab sends this
# text to `sh -s`; it reads no input.
# Output: "removed", "nothing installed", or "left: THING" for each thing that would not go, with exit status 1.
set -u
LC_ALL=C
data=/var/lib/rancher/k3s/data/current/bin
# A machine without tools of its own for firewall rules and sets used those that k3s brings, and so must this.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$data:$data/aux
export LC_ALL PATH
before=/opt/lab/k3s-before
groups=/sys/fs/cgroup
slices="kubepods.slice lab.slice"

noted() {
    [ -r "$before/$1" ] && cat "$before/$1"
}

was_absent() {
    noted absent | grep -qxF "$1"
}

mounts() {
    awk '$5 ~ "^/(var/lib/kubelet|var/lib/rancher|run/k3s|run/netns/cni-)" { print $5 }' /proc/self/mountinfo | sort -r
}

# Processes of the lab's and of k3s's own programs, whatever unit they were in: shims outlive the unit.
programs() {
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in
            /opt/lab/bin/* | /var/lib/rancher/k3s/data/*) echo "${process#/proc/}" ;;
        esac
    done
}

# One by one: systemctl does nothing at all for a list in which one unit is not known.
stop() {
    for name in "$@"; do
        systemctl stop "$name" 2>/dev/null
    done
}

end_group() {
    if [ -e "$1/cgroup.kill" ]; then
        echo 1 >"$1/cgroup.kill"
    elif [ -d "$1" ]; then
        pids=$(find "$1" -name cgroup.procs -exec cat {} +)
        for pid in $pids; do
            kill -s KILL "$pid"
        done
    fi
}

remove_group() {
    tries=50
    while [ -d "$1" ] && [ "$tries" -gt 0 ]; do
        find "$1" -depth -type d -exec rmdir {} + 2>/dev/null
        tries=$((tries - 1))
        [ -d "$1" ] && sleep 0.2
    done
}

# A shim listens on a socket outside k3s's folders: a hash of containerd's address, namespace and pod
# (containerd, pkg/shim/util_unix.go). Noted before the bundles go that tell the pods.
note_sockets() {
    for bundle in /run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/*; do
        if [ -d "$bundle" ]; then
            printf '%s' "/run/k3s/containerd/containerd.sock/k8s.io/${bundle##*/}" | sha256sum |
                sed 's|^\([0-9a-f]*\).*|/run/containerd/s/\1|'
        fi
    done >>"$before/sockets"
}

end_units() {
    stop 'lab-measure-*' k3s
    note_sockets
    end_group "$groups/kubepods.slice"
    programs | xargs -r kill -s KILL 2>/dev/null
    end_group "$groups/system.slice/k3s.service"
    end_group "$groups/kubepods.slice"
    end_group "$groups/lab.slice"
    # shellcheck disable=SC2086  # a list of words
    stop $slices
    rm -f /etc/systemd/system/k3s.service
    systemctl daemon-reload
    systemctl reset-failed k3s 'lab-*' 'kubepods*' 'cri-containerd-*' 2>/dev/null
    remove_group "$groups/system.slice/k3s.service"
    remove_group "$groups/kubepods.slice"
    remove_group "$groups/lab.slice"
}

unmount() {
    mounts | while read -r place; do
        umount "$place" 2>/dev/null || umount --lazy "$place"
        case $place in
            /run/netns/*) rm -f "$place" ;;
        esac
    done
}

# Links of flannel and the bridge plugin, and the pods' ends that hang on the bridge; none that was there before.
new_links() {
    for path in /sys/class/net/*; do
        name=${path##*/}
        case $name in
            cni0 | flannel.1 | flannel-v6.1 | flannel-wg | flannel-wg-v6 | kube-ipvs0) ;;
            *) [ "$(readlink "$path/master" 2>/dev/null | sed 's|.*/||')" = cni0 ] || continue ;;
        esac
        noted links | grep -qxF "$name" || echo "$name"
    done
}

remove_links() {
    new_links | sort -r | while read -r name; do
        ip link delete "$name" 2>/dev/null
    done
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

# What kube-proxy, the kubelet, flannel, the CNI plugins and the network policies have added. Other rules may have come
# meanwhile too, of the machine's owner.
new_rules() {
    rules | grep -e KUBE- -e CNI- -e FLANNEL -e flannel -e kube-router -e 'network polic' | while read -r line; do
        noted rules | grep -qxF -e "$line" || echo "$line"
    done
}

new_chains() {
    new_rules | sed -n 's/^\([^ ]* [^ ]*\) :/\1 /p'
}

remove_rules() {
    new_chains | while read -r tool table chain; do
        "$tool" -w 5 -t "$table" -F "$chain"
    done
    new_rules | while read -r tool table rule; do
        case $rule in
            # xargs reads the quotes that the tool writes around comments.
            -A*) echo "-D${rule#-A}" | xargs "$tool" -w 5 -t "$table" ;;
        esac
    done
    new_chains | while read -r tool table chain; do
        "$tool" -w 5 -t "$table" -X "$chain"
    done
    if command -v ipset >/dev/null; then
        ipset list -name 2>/dev/null | grep -e '^KUBE-' -e '^inet6:KUBE-' -e '^kube-router-' | while read -r name; do
            ipset destroy "$name"
        done
    fi
}

changed_sysctls() {
    noted sysctls | while read -r key value; do
        # One that went with its module is as good as restored.
        [ ! -e "/proc/sys/$key" ] || [ "$(cat "/proc/sys/$key")" = "$value" ] || echo "$key $value"
    done
}

network='br_netfilter|bridge|stp|llc|vxlan|udp_tunnel|ip6_udp_tunnel|veth'
filters='ip_set.*|ip_vs.*|nf_.*|nft_.*|nfnetlink.*|xt_.*|ipt_.*|ip6t_.*|ip6?table.*|ip6?_tables|x_tables'

# Modules that k3s, its links and its rules loaded, as far as nobody uses them; in rounds, since one uses another.
remove_modules() {
    tries=4
    while [ "$tries" -gt 0 ]; do
        sed 's/ .*//' /proc/modules | grep -xE "overlay|$network|$filters" | while read -r name; do
            noted modules | grep -qxF "$name" || rmmod "$name"
        done 2>/dev/null
        tries=$((tries - 1))
    done
}

restore_kernel() {
    changed_sysctls | while read -r key value; do
        echo "$value" >"/proc/sys/$key"
    done
    remove_modules
    tr ' ' '\n' <"$groups/cgroup.subtree_control" | while read -r controller; do
        # One that another unit uses by now stays on.
        noted controllers | grep -qw "$controller" || echo "-$controller" >"$groups/cgroup.subtree_control"
    done 2>/dev/null
}

folders() {
    echo "/etc/rancher /var/lib/rancher /var/lib/kubelet /run/k3s /run/flannel /run/lab"
    for path in /var/log/pods /var/log/containers /usr/libexec/kubernetes /var/lib/cni /etc/cni /opt/cni; do
        was_absent "$path" && echo "$path"
    done
}

remove_files() {
    noted sockets | sort -u | xargs -r rm -f
    [ -z "$(mounts)" ] || return
    for path in $(folders); do
        rm -rf "$path"
    done
    rm -rf /var/log/pods/lab_* /var/log/pods/lab-quota_* /var/log/pods/kube-system_critical_*
    if [ -d /var/log/containers ]; then
        find /var/log/containers -type l -lname '/var/log/pods/*' ! -exec test -e {} \; -delete
    fi
    # A shim of k3s's keeps runc's state where runc keeps it by itself, and a container that was killed leaves it there.
    was_absent /run/containerd/runc/k8s.io && rm -rf /run/containerd/runc/k8s.io
    # containerd listens for plug-ins outside k3s's folders, and one that was killed leaves its socket.
    was_absent /run/nri && rm -f /run/nri/nri.sock
    for path in /run/containerd/s /run/containerd/runc /run/containerd /run/nri /run/netns; do
        if [ -d "$path" ] && was_absent "$path"; then
            rmdir "$path" 2>/dev/null
        fi
    done
}

left() {
    for unit in k3s $slices; do
        state=$(systemctl is-active "$unit")
        case $state in
            inactive | unknown) ;;
            *) echo "unit $unit is $state" ;;
        esac
    done
    for path in $(folders) "$groups/kubepods.slice" "$groups/lab.slice"; do
        [ -e "$path" ] && echo "$path"
    done
    mounts | sed 's/^/mounted: /'
    programs | sed 's/^/process /'
    new_links | sed 's/^/link /'
    new_rules | sed 's/^/rule: /'
    changed_sysctls | sed 's/\(.*\) \(.*\)/sysctl \1, which was \2/'
}

main() {
    if [ -d "$before" ]; then
        # A run that lost its connection may still be at it.
        exec 9<"$before"
        flock 9
    fi
    if [ ! -d "$before" ]; then
        rm -rf "$before.part"
        rmdir /opt/lab 2>/dev/null
        echo "nothing installed"
        return 0
    fi
    end_units
    unmount
    remove_links
    remove_rules
    restore_kernel
    remove_files
    found=$(left)
    if [ -n "$found" ]; then
        echo "$found" | sed 's/^/left: /'
        return 1
    fi
    find /opt/lab -mindepth 1 -maxdepth 1 ! -name k3s-before -exec rm -rf {} +
    mv "$before" "$before.part" && rm -rf /opt/lab
    echo "removed"
}

main </dev/null
