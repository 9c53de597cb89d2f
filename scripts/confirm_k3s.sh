#!/bin/sh
# Confirm on a droplet (or, with HOST=user@addr, on a machine of yours) what docs/k3s.md takes from k3s's sources: install
# each of VERSIONS, run the checklist on the node and the stages class, kernel and eviction, take everything off again.
# Environment: LAB (the program, default lab), VERSIONS, HOST, RESULTS (a folder; default: a new temporary one).
set -eu
lab=${LAB:-lab}
versions=${VERSIONS:-v1.34.12,v1.37.1}
results=${RESULTS:-$(mktemp -d)}
checks=/opt/lab/node-scripts/k3s_confirm.sh
where="--provider digitalocean"
again=$where
if [ -n "${HOST:-}" ]; then
    where="--host $HOST"
    again="--provider ssh"
fi
place=$(mktemp -d)
node=""
failed=0

# A kept node costs money until somebody takes it down, also when this ends early.
trap 'rm -r "$place"; [ -z "$node" ] || "$lab" down "$node"' EXIT

say() {
    echo "== $*" >&2
}

nodes() {
    "$lab" nodes --json | python3 -c 'import json, sys
for entry in json.load(sys.stdin):
    print(entry["id"])' | sort
}

for version in $(echo "$versions" | tr ',' ' '); do
    release=$version
    case $version in *+*) ;; *) release=$version+k3s1 ;; esac
    nodes >"$place/before"
    say "$version: install, class and kernel, keep the node"
    # shellcheck disable=SC2086  # a list of words
    "$lab" run --distro k3s $where --versions "$version" --stages class,kernel --quick --keep always \
        --results "$results" || failed=1
    node=$(nodes | comm -13 "$place/before" -)
    if [ -z "$node" ]; then
        say "$version: no node was kept"
        failed=1
        continue
    fi
    say "$version: the checklist of docs/k3s.md on $node"
    # Only root may look; a droplet is entered as root, another machine perhaps not.
    "$lab" ssh "$node" "as=; [ \$(id -u) = 0 ] || as='sudo -n'; \$as sh $checks $release" || failed=1
    say "$version: one eviction repetition on $node"
    # shellcheck disable=SC2086  # a list of words
    "$lab" run --distro k3s $again --versions "$version" --stages eviction --quick --node "$node" \
        --results "$results" || failed=1
    "$lab" down "$node" || failed=1
    node=""
done

say "both versions on one node, which must be as before in between (checklist 19)"
# shellcheck disable=SC2086  # a list of words
"$lab" run --distro k3s $where --versions "$versions" --stages class --quick --reuse-node --results "$results" ||
    failed=1

say "results are in $results"
exit "$failed"
