#!/usr/bin/env bash
# The core of the end-to-end tests, those that need the operator's image and no other: the last step of a whole `make test` (tools/test.sh).
#
#   1. preparations: the node's programs, the operator's image, the node. What this machine lacks for them, or what takes too long, is printed as
#      `skipped: core of the end-to-end tests: <reason>`, and the status is 0.
#   2. the tests. From here on whatever goes wrong is a failure, tests that do not end among it.
#   3. the node is taken down, however this ended, and the machine compared with what it was.
#
# Fifteen minutes at most. A node that is up already is somebody's and stays as it is. What was printed by the preparations is in .cache/core.log.
# CORE_PREPARE_SECONDS and CORE_TESTS_SECONDS set other limits.
# CORE_CLUSTER=kind (`make e2e E2E="kind core"`): on a cluster of kind's, and half an hour at most, for its node image may have to be made.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" E2E_CLUSTER=${CORE_CLUSTER:-local}
# Deadlines of single tests; a machine of two cores may have other work.
export E2E_PATIENCE=${E2E_PATIENCE:-3}

title="core of the end-to-end tests"
tests=(e2e/test_node.py e2e/test_network_policy.py e2e/test_chart.py
    # It needs two more images.
    --deselect e2e/test_chart.py::test_the_charts_own_object_store_comes_up_with_its_bucket)
programs=tools/node.sh module=e2e.nodes total=900 preparing=440
[[ $E2E_CLUSTER != kind ]] || { programs=tools/kind.sh module=e2e.kind total=1800 preparing=1200; }
down_seconds=80 compare_seconds=20 settle_seconds=30 grace=10
# What preparations leave of the fifteen minutes is the tests', but for what the end takes: five of them at least.
prepare_seconds=${CORE_PREPARE_SECONDS:-$preparing} tests_seconds=${CORE_TESTS_SECONDS:-$total}
test_seconds=180 # one test; the slowest takes half a minute
python=.venv/bin/python
log=.cache/core.log
lock=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/node.lock
before=.cache/core.before.json
started= group=

limited() {  # $1: seconds, then a command. 124 or 137 when it took longer, and 124 at once when there is no time left.
    local seconds=$1
    shift
    ((seconds > 0)) || return 124
    # In the background and awaited: a signal to this script is acted upon at once. `timeout` ends all that the command started, but for the node's daemons.
    timeout -k "$grace" "$seconds" "$@" &
    group=$!
    wait "$group"
    local status=$?
    ((status != 124 && status != 137)) || settle
    return "$status"
}

settle() {  # What a step that was ended left of its process group has time to clean up (mounts, folders), and is killed.
    local until=$((SECONDS + settle_seconds))
    while [[ -n $group ]] && kill -0 -- "-$group" 2>/dev/null; do
        ((SECONDS < until)) || { kill -KILL -- "-$group" 2>/dev/null; break; }
        sleep 0.1
    done
    group=
}

skip() {
    echo "skipped: $title: $*"
    exit 0
}

fail() {
    echo "$title: $*" >&2
    exit 1
}

finish() {  # at every exit: nothing that was started here stays
    local status=$? running
    trap : INT TERM HUP
    running=$(jobs -pr)
    if [[ -n $running ]]; then
        # shellcheck disable=SC2086 # several
        kill -TERM $running 2>/dev/null
        while [[ -n $(jobs -pr) ]]; do wait; done # timeout kills what does not end
        settle
    fi
    if [[ -n $started ]]; then
        if timeout -k "$grace" "$down_seconds" "$python" -m $module down >>"$log" && timeout -k "$grace" "$compare_seconds" "$python" -m $module compare "$before"; then
            : >"$lock"
        else
            echo "$title: the node was not taken down cleanly; \`$python -m $module down\` tries again" >&2
            status=1
        fi
        rm -f "$before"
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

prepare() {  # $1: what it is for, then a command. The lock stays with this script: a service that a package starts shall not hold it.
    local what=$1 begun=$SECONDS status
    shift
    limited $((prepare_seconds - SECONDS)) "$@" >>"$log" 2>&1 9>&-
    status=$?
    ((status != 124 && status != 137)) || skip "$what: preparations took longer than $prepare_seconds s ($log)"
    if ((status != 0)); then
        # The node quotes a log behind its own words; all others end with what went wrong.
        skip "$what: $({ grep '^node: waited' "$log" || grep -v '^[[:space:]]*$' "$log"; } | tail -n1) ($log)"
    fi
    ((SECONDS - begun < 2)) || echo "   $what: $((SECONDS - begun)) s"
}

mkdir -p .cache "$(dirname "$lock")"
[[ $(uname -s) == Linux ]] || skip "a node needs Linux"
[[ $(id -u) == 0 ]] || skip "a node needs root: it mounts, and makes network namespaces"
exec 9>>"$lock" || skip "$lock cannot be written"
flock -n 9 || skip "another run of end-to-end tests has this machine's node; see who holds $lock"
: >"$log"

prepare "programs of the node" "$programs"
if [[ ! -s $lock ]] && "$python" -m $module status | grep -q '[0-9]$'; then
    skip "a node is up that was not started here, and may be in use; \`$python -m $module down\` takes it down"
fi
prepare "what an earlier run left" "$python" -m $module down # one that was killed with no chance to do so itself
: >"$lock"
prepare "the operator's image" tools/archives.sh operator
prepare "the machine as it is" "$python" -m $module snapshot "$before"
started=yes
echo "core" >"$lock"
prepare "the node" "$python" -m $module up
prepare "the image on the node" "$python" -m $module load .cache/images/operator.tar

left=$((total - down_seconds - compare_seconds - settle_seconds - 3 * grace - SECONDS))
limited $((tests_seconds < left ? tests_seconds : left)) "$python" -m pytest -p no:cacheprovider --junitxml=.cache/junit-core.xml --durations=5 \
    --timeout="$test_seconds" "${tests[@]}"
status=$?
((status != 124 && status != 137)) || fail "the tests did not end within their time, or were killed, $SECONDS s after the beginning"
((status == 0)) || fail "tests failed"
