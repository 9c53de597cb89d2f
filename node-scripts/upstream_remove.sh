#!/bin/sh
# Take everything off a machine that the lab's installation of Kubernetes brought, pods included, and restore what
# upstream_before.sh wrote down. Each step can be repeated; a machine without that record is left alone. The lab sends
# this text to `sh -s`; it reads no input.
# Output: "removed", "nothing installed", or "left: THING" for each thing that would not go, with exit status 1.
set -u
LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
before=/opt/lab/before
groups=/sys/fs/cgroup
socket=/run/lab/containerd/containerd.sock
ctr="timeout 60 /opt/lab/bin/ctr --address $socket --namespace k8s.io"
plane="lab-scheduler lab-controller-manager lab-apiserver lab-etcd"
units="lab-kubelet lab-containerd $plane"
slices="kubepods.slice lab.slice"

noted() {
    [ -r "$before/$1" ] && cat "$before/$1"
}

was_absent() {
    noted absent | grep -qxF "$1"
}

mounts() {
    awk '$5 ~ "^/(var/lib/kubelet|var/lib/lab|run/lab)(/|$)" { print $5 }' /proc/self/mountinfo | sort -r
}

# Processes of the lab's own programs, whatever unit they were in.
programs() {
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in
            /opt/lab/bin/*) echo "${process#/proc/}" ;;
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

thaw() {
    systemctl thaw lab-control.slice 2>/dev/null
    if [ -d "$groups/lab.slice" ]; then
        find "$groups/lab.slice" -name cgroup.freeze -exec sh -c 'for file; do echo 0 >"$file"; done' sh {} +
    fi
}

# A shim listens on a socket outside the lab's folders: a hash of containerd's address, namespace and pod
# (containerd, pkg/shim/util_unix.go). Noted before the bundles go that tell the pods.
note_sockets() {
    for bundle in "${socket%/*}"/io.containerd.runtime.v2.task/k8s.io/*; do
        if [ -d "$bundle" ]; then
            printf '%s' "$socket/k8s.io/${bundle##*/}" | sha256sum | sed 's|^\([0-9a-f]*\).*|/run/containerd/s/\1|'
        fi
    done >>"$before/sockets"
}

end_pods() {
    note_sockets
    end_group "$groups/kubepods.slice"
    if systemctl is-active --quiet lab-containerd; then
        # shellcheck disable=SC2086  # lists of words
        {
            found=$($ctr tasks list --quiet) && [ -n "$found" ] && $ctr tasks delete --force $found
            found=$($ctr containers list --quiet) && [ -n "$found" ] && $ctr containers delete $found
        } >/dev/null 2>&1
    fi
}

end_units() {
    stop 'lab-measure-*' lab-kubelet
    end_pods
    # shellcheck disable=SC2086  # lists of words
    stop $units $slices
    for unit in $units; do
        end_group "$groups/system.slice/$unit.service"
    done
    end_group "$groups/kubepods.slice"
    end_group "$groups/lab.slice"
    programs | xargs -r kill -s KILL 2>/dev/null
    for unit in $units; do
        rm -f "/etc/systemd/system/$unit.service"
    done
    systemctl daemon-reload
    systemctl reset-failed 'lab-*' 'kubepods*' 'cri-containerd-*' 2>/dev/null
    for unit in $units; do
        remove_group "$groups/system.slice/$unit.service"
    done
    remove_group "$groups/kubepods.slice"
    remove_group "$groups/lab.slice"
}

unmount() {
    mounts | while read -r place; do
        umount "$place" 2>/dev/null || umount --lazy "$place"
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

new_chains() {
    chains | while read -r line; do
        noted chains | grep -qxF "$line" || echo "$line"
    done
}

remove_chains() {
    new_chains | while read -r tool table chain; do
        "$tool-save" -t "$table" | grep -e "-j $chain\$" -e "-j $chain " | sed 's/^-A/-D/' | while read -r rule; do
            # xargs reads the quotes that the tool writes around comments.
            echo "$rule" | xargs "$tool" -w 5 -t "$table"
        done
        "$tool" -w 5 -t "$table" -F "$chain"
    done
    new_chains | while read -r tool table chain; do
        "$tool" -w 5 -t "$table" -X "$chain"
    done
}

changed_sysctls() {
    noted sysctls | while read -r key value; do
        [ "$(cat "/proc/sys/$key")" = "$value" ] || echo "$key $value"
    done
}

restore_kernel() {
    changed_sysctls | while read -r key value; do
        echo "$value" >"/proc/sys/$key"
    done
    if was_absent /sys/module/overlay && [ -e /sys/module/overlay ]; then
        modprobe -r overlay 2>/dev/null
    fi
    tr ' ' '\n' <"$groups/cgroup.subtree_control" | while read -r controller; do
        # One that another unit uses by now stays on.
        noted controllers | grep -qw "$controller" || echo "-$controller" >"$groups/cgroup.subtree_control"
    done 2>/dev/null
}

folders() {
    echo "/var/lib/kubelet /etc/lab /var/lib/lab /run/lab/containerd /run/lab/runc /run/lab/kubectl"
    for path in /var/log/pods /var/log/containers /usr/libexec/kubernetes; do
        was_absent "$path" && echo "$path"
    done
}

remove_files() {
    noted sockets | sort -u | xargs -r rm -f
    [ -z "$(mounts)" ] || return
    for path in $(folders); do
        rm -rf "$path"
    done
    if [ -d /var/log/containers ]; then
        find /var/log/containers -type l -lname '/var/lib/lab/*' -delete
    fi
    for path in /run/containerd/s /run/containerd /run/netns /run/lab; do
        if [ -d "$path" ] && { [ "$path" = /run/lab ] || was_absent "$path"; }; then
            rmdir "$path" 2>/dev/null
        fi
    done
}

left() {
    for unit in $units $slices; do
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
    new_chains | sed 's/^/chain: /'
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
    thaw
    end_units
    unmount
    remove_chains
    restore_kernel
    remove_files
    found=$(left)
    if [ -n "$found" ]; then
        echo "$found" | sed 's/^/left: /'
        return 1
    fi
    find /opt/lab -mindepth 1 -maxdepth 1 ! -name before -exec rm -rf {} +
    mv "$before" "$before.part" && rm -rf /opt/lab
    echo "removed"
}

main </dev/null
