#!/bin/sh
# Start k3s and wait until pods can be created, in the order in which one thing needs the other; each step has its own
# limit in seconds within TOTAL. Can be run again at any point.
# Arguments: TOTAL UNIT READYZ NODE READY IMAGE ACCOUNTS CALM NODE-NAME NAMESPACE
# Output: "STEP: state, N s" for each step done, then "ready"; or "failed: STEP: why" and the journal's last lines, with
# exit status 1.
set -u
LC_ALL=C
export LC_ALL
bin=/opt/lab/bin
credentials=/opt/lab/credentials
tls=/var/lib/rancher/k3s/server/tls
socket=/run/k3s/containerd/containerd.sock
starts=3
node=$9

# Hundredths of a second since boot: of whole seconds one may be over at once.
now() {
    sed 's/\.//; s/ .*//' /proc/uptime
}

fail() {
    echo "failed: $*"
    journalctl -u k3s -n 15 -o cat --no-pager
    exit 1
}

# Sets `end` to the point where a step must be done: its own limit, or that of the whole.
begin() {
    began=$(now)
    end=$((began + $1 * 100))
    [ "$end" -lt "$last" ] || end=$last
}

spent() {
    echo "$((($(now) - began) / 100)) s"
}

properties() {
    systemctl show k3s --property=ActiveState --property=SubState --property=Result --property=ExecMainStatus |
        tr '\n' ' '
}

kubectl() {
    timeout 40 "$bin/k3s" kubectl --cache-dir=/run/lab/kubectl --kubeconfig=/etc/rancher/k3s/k3s.yaml \
        --request-timeout=20s "$@"
}

# k3s imports what lies in its folder of images when it starts.
own_images() {
    [ -d /opt/lab/images ] || return 0
    mkdir -p /var/lib/rancher/k3s/agent/images
    for file in /opt/lab/images/*; do
        ln -f "$file" /var/lib/rancher/k3s/agent/images/ || cp "$file" /var/lib/rancher/k3s/agent/images/
    done
}

# The unit does not restart by itself. A machine that is slow at first may miss a deadline of k3s's own, so it is started
# again here, a few times.
start_unit() {
    begin "$1"
    tries=0
    while :; do
        tries=$((tries + 1))
        left=$(((end - $(now) + 99) / 100))
        [ "$left" -gt 0 ] || left=1
        systemctl reset-failed k3s 2>/dev/null
        said=$(timeout "$left" systemctl start k3s 2>&1)
        status=$?
        [ "$status" -ne 0 ] || break
        said="$(properties)$said"
        [ "$status" -ne 124 ] || fail "unit: not started within $1 s; last seen: $said"
        [ "$tries" -lt "$starts" ] || fail "unit: k3s ended $tries times while it started; last seen: $said"
        [ "$(now)" -lt "$end" ] || fail "unit: not started within $(spent), $tries tries; last seen: $said"
        sleep 2
    done
    echo "unit: active after $tries $([ "$tries" -eq 1 ] && echo start || echo starts), $(spent)"
}

# Arguments: name of the step, its limit, what is asked until it says yes; its output is the state.
wait_for() {
    begin "$2"
    while :; do
        if state=$("$3" 2>&1); then
            echo "$1: $state, $(spent)"
            return
        fi
        systemctl is-active --quiet k3s || fail "$1: k3s has ended; $(properties)"
        [ "$(now)" -lt "$end" ] || fail "$1: not within $(spent); last seen: $(echo "${state:-nothing}" | tail -n 3)"
        sleep 1
    done
}

readyz() {
    text=$(kubectl get --raw /readyz 2>&1)
    echo "$text"
    [ "$text" = ok ]
}

object() {
    kubectl get node "$node" -o name
}

conditions() {
    kubectl get node "$node" \
        -o 'jsonpath={range .status.conditions[*]}{.type}={.status} {end}{.spec.taints[*].key}'
}

ready() {
    text=$(conditions)
    echo "$text"
    case " $text " in *" Ready=True "*) ;; *) return 1 ;; esac
}

image() {
    python3 -B /opt/lab/node-scripts/busybox_image.py "$bin/busybox" "$bin/ctr" "$socket" >/run/lab/image 2>&1 &&
        echo imported && return
    cat /run/lab/image
    return 1
}

accounts() {
    [ -n "$(kubectl get namespace "$namespace" -o name --ignore-not-found)" ] ||
        kubectl create namespace "$namespace" || return 1
    for place in "$namespace" kube-system; do
        kubectl get serviceaccount default --namespace "$place" -o name || return 1
    done
}

# The cloud controller takes its taint away a little after the node is there.
calm() {
    text=$(conditions)
    echo "$text"
    case " $text " in *" MemoryPressure=False "*) ;; *) return 1 ;; esac
    case "$text" in *node.*) return 1 ;; esac
}

main() {
    last=$(($(now) + $1 * 100))
    namespace=${10}
    mkdir -p /run/lab "$credentials"
    chmod 700 "$credentials"
    ln -sfn k3s "$bin/ctr"
    ln -sfn "$tls/server-ca.crt" "$credentials/ca.crt"
    ln -sfn "$tls/client-admin.crt" "$credentials/reader.crt"
    ln -sfn "$tls/client-admin.key" "$credentials/reader.key"
    own_images
    systemctl daemon-reload
    start_unit "$2"
    wait_for readyz "$3" readyz
    wait_for node "$4" object
    wait_for Ready "$5" ready
    wait_for image "$6" image
    wait_for "default service account" "$7" accounts
    wait_for "no memory pressure" "$8" calm
    echo ready
}

main "$@" </dev/null
