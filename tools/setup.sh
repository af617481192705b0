#!/usr/bin/env bash
# Makes this checkout ready: system packages, `.venv` from requirements/dev.lock, the project itself installed editable.
#
# Called by `make demo`, `make test` and every other target that needs the environment. A second run costs nothing (a stamp in .venv holds the
# digest of all that went in). Safe when interrupted: the stamp is written last, and an install that was cut short is done again whole. Two runs at
# once wait for each other. Nothing is removed from the machine, and no service is stopped or disabled.
#
#   tools/setup.sh                                    what tests and the demo need
#   tools/setup.sh --with aria2c:aria2 tc:iproute2    and these commands, each with the Debian package that brings it
#   VARIANT=cuda tools/setup.sh                       packages for NVIDIA's GPUs (requirements/dev-cuda.lock); the checkout keeps its variant
#   tools/setup.sh --dry-run                          says what it would install, and changes nothing but .cache
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export PATH="$PATH:/usr/sbin:/sbin"

say() { echo "setup: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

# What must be on PATH, and the Debian package that brings it.
commands=(nginx:nginx-light redis-server:redis-server bwrap:bubblewrap flock:util-linux promtool:prometheus chromium:chromium)
dry_run=
if [[ ${1:-} == --dry-run ]]; then
    dry_run=yes
    shift
fi
if [[ ${1:-} == --with ]]; then
    commands+=("${@:2}")
elif (($#)); then
    fail "unknown argument $1; known are: --dry-run, --with COMMAND:PACKAGE ..."
fi

# Two variants of the engine in one environment would be one broken engine: another variant is another environment.
kept=
[[ -f .venv/.shoal-variant ]] && kept=$(<.venv/.shoal-variant)
[[ -n $kept ]] || kept=cpu
variant=${VARIANT:-$kept}
case $variant in
    cpu) lock=requirements/dev.lock disk="6.5 GB" ;;
    cuda) lock=requirements/dev-cuda.lock disk="some 9 GB" ;;
    *) fail "VARIANT is $variant; variants are: cpu cuda" ;;
esac

missing_packages() {
    local pair
    for pair in "${commands[@]}"; do
        command -v "${pair%%:*}" >/dev/null || echo "${pair##*:}"
    done
    if ! find_python >/dev/null; then
        echo python3
        echo python3-venv
    elif ! "$(find_python)" -c 'import ensurepip, venv' 2>/dev/null; then
        echo python3-venv  # Debian ships python3 without the modules that make a virtual environment
    fi
}

find_python() {
    # The lock is resolved for 3.11, and Debian 12 has it.
    local candidate
    for candidate in python3.11 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; raise SystemExit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

install_packages() {
    local packages as_root=()
    mapfile -t packages < <(missing_packages)
    ((${#packages[@]})) || return 0
    if ! command -v apt-get >/dev/null; then
        fail "this machine lacks ${packages[*]} (names of Debian packages). There is no apt-get here:" \
            "install nginx, Redis, bubblewrap and Python 3.11 with its venv module by your system's own means, then run again."
    fi
    if [[ $(id -u) != 0 ]]; then
        command -v sudo >/dev/null || fail "this machine lacks ${packages[*]}. As root: apt-get install -y ${packages[*]}"
        as_root=(sudo)
    fi
    say "installing ${packages[*]} with apt-get"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y \
        --no-install-recommends "${packages[@]}" >/dev/null
    mapfile -t packages < <(missing_packages)
    ((${#packages[@]} == 0)) || fail "after apt-get install, still missing: ${packages[*]} (Python 3.11 is needed)"
}

wanted_stamp() {
    {
        cat "$lock" requirements/bootstrap.lock pyproject.toml tools/setup.sh
        echo "$root"  # an editable install and the scripts in .venv/bin name their folder
    } | sha256sum | cut -d' ' -f1
}

is_ready() {
    [[ -f .venv/.shoal-ready && $(<.venv/.shoal-ready) == "$(wanted_stamp)" && -x .venv/bin/shoal ]] &&
        .venv/bin/python -c '' 2>/dev/null && [[ -z $(missing_packages) ]]
}

use_index() {
    # pip's own configuration names the index where a site has its own; uv does not read it. It may hold a password: never shown.
    local index
    index=$(.cache/bootstrap/bin/python -m pip config get global.index-url 2>/dev/null || true)
    [[ -n $index && -z ${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-} ]] && export UV_DEFAULT_INDEX=$index
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} UV_NO_CONFIG=1 UV_SYSTEM_CERTS=1
}

install_python_packages() {
    local python uv=.cache/bootstrap/bin/uv
    python=$(find_python)
    mkdir -p .cache
    # The installer lives apart from what it installs.
    if [[ ! -f .cache/bootstrap/.ready ]] || ! cmp -s requirements/bootstrap.lock .cache/bootstrap/.ready || ! "$uv" --version >/dev/null 2>&1; then
        say "making an environment for the installer, some ten seconds; on a busy machine a minute"
        rm -rf .cache/bootstrap
        "$python" -m venv .cache/bootstrap
        .cache/bootstrap/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
        cp requirements/bootstrap.lock .cache/bootstrap/.ready
    fi

    if [[ -n $dry_run ]]; then
        say "would install these packages of $lock into an empty .venv"
        rm -rf .cache/dry-run
        "$uv" venv -q --python "$python" .cache/dry-run
        use_index
        VIRTUAL_ENV=$root/.cache/dry-run "$uv" pip install --dry-run --no-deps --require-hashes -r "$lock"
        rm -rf .cache/dry-run
        exit 0
    fi
    if [[ -d .venv && $variant != "$kept" ]]; then
        say "the packages of .venv are for ${kept}, and it is made anew for $variant"
        rm -rf .venv
    fi
    local redo=()
    [[ -f .venv/.shoal-installing ]] && redo=(--reinstall)
    if ! .venv/bin/python -c 'import sys; raise SystemExit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        rm -rf .venv
        "$uv" venv -q --python "$python" .venv
    fi
    rm -f .venv/.shoal-ready
    touch .venv/.shoal-installing

    use_index
    export VIRTUAL_ENV=$root/.venv
    say "installing Python packages from $lock (the first time some minutes, and $disk of disk in .venv)"
    "$uv" pip install -q --no-deps --require-hashes "${redo[@]}" -r "$lock"
    echo "$variant" >.venv/.shoal-variant
    # Its name before 0.2.0: two distributions with the same modules would list each environment twice.
    [[ -z $(find .venv/lib -maxdepth 3 -name 'shoal-*.dist-info' -print -quit) ]] || "$uv" pip uninstall -q shoal
    # The build backend is in the lock, so that nothing unpinned is fetched here.
    "$uv" pip install -q --no-deps --no-build-isolation --offline --reinstall-package shoal-rl -e .
    # What the documentation has people do with packages of their own; the one that comes with Python, nothing is fetched.
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip --default-pip >/dev/null
    rm .venv/.shoal-installing
    wanted_stamp >.venv/.shoal-ready
}

# The quick way, without the lock: nothing to do.
[[ -z $dry_run ]] && is_ready && exit 0

command -v flock >/dev/null || install_packages
mkdir -p .cache
exec 9>.cache/setup.lock
flock -w 10 9 || { say "another set-up of this checkout is running, waiting for it (at most 40 minutes)" && flock -w 2400 9; } ||
    fail "the other set-up did not end; see who holds .cache/setup.lock"
[[ -z $dry_run ]] && is_ready && exit 0
started=$SECONDS
[[ -n $dry_run ]] || install_packages
install_python_packages
say "ready after $((SECONDS - started)) s"
