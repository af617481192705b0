#!/usr/bin/env bash
# Resolves requirements/{bootstrap,dev,dev-cuda,oracle}.lock and requirements/images/*.lock from requirements/bootstrap.in and pyproject.toml (`make lock`).
#
# Hashes pin every file; no index is named, so that the lock works behind any mirror. Versions already locked are kept where they still fit;
# `UPGRADE=1 make lock` takes newer ones. Locks of images hold for x86-64 and arm64 (tools/arm64.py). Needs only Python 3.11 with its venv module.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check -r requirements/bootstrap.in

options=(-q --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock")
[[ -n ${UPGRADE:-} ]] && options+=(--upgrade)
index=$("$folder/venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)
[[ -n $index && -z ${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-} ]] && export UV_DEFAULT_INDEX=$index
export UV_NO_CONFIG=1 UV_SYSTEM_CERTS=1

uv=$folder/venv/bin/uv

mkdir -p .cache requirements/images
pairs=()
lock_both() {  # $1: a lock, the others: what it is resolved from. For x86-64, and then for arm64 in the same versions, from wheels alone.
    local lock=$1 name
    shift
    name=$(basename "$lock" .lock)
    "$uv" pip compile "${options[@]}" "$@" -o "$lock"
    "$uv" pip compile -q --python-version 3.11 --no-build --python-platform aarch64-manylinux_2_36 --format pylock.toml --constraint "$lock" "$@" \
        -o ".cache/pylock.$name.toml"
    pairs+=("$lock=.cache/pylock.$name.toml")
}

rm -f .cache/pylock.*.toml # else uv would keep to what they say
lock_both requirements/bootstrap.lock requirements/bootstrap.in
"$uv" pip compile "${options[@]}" --extra dev --override requirements/overrides.txt pyproject.toml -o requirements/dev.lock
# The oracle's environment has the versions of .venv, so that a difference between the two trainers is never one of torch.
"$uv" pip compile "${options[@]}" --extra trainer --extra oracle --constraint requirements/dev.lock --override requirements/overrides.txt \
    pyproject.toml -o requirements/oracle.lock
# An image has what its role needs, in the versions that were tested.
for role in operator protocol relay tracker; do
    lock_both "requirements/images/$role.lock" --extra "$role" --constraint requirements/dev.lock --override requirements/overrides.txt pyproject.toml
done
# Trainer, worker and validator stand on one runtime. Plain vllm is the CUDA build; the one package that it wants in another version is left to it.
lock_both requirements/images/runtime-cpu.lock --extra trainer --extra worker --extra validator --extra lm-eval --extra reasoning-gym --extra verifiers --constraint requirements/dev.lock \
    --override requirements/overrides.txt --override requirements/runtime-cpu.txt pyproject.toml
sed -n 's/^\([A-Za-z0-9].*==[^ ]*\).*/\1/p' requirements/dev.lock | grep -v '^apache-tvm-ffi=' >.cache/tested.txt # a name that the lock can give for it
lock_both requirements/images/runtime-cuda.lock --extra trainer --extra cuda --extra validator --extra lm-eval --extra reasoning-gym --extra verifiers --constraint .cache/tested.txt \
    --override requirements/overrides.txt pyproject.toml
# A checkout on a machine with NVIDIA's GPUs (`make setup VARIANT=cuda`).
"$uv" pip compile "${options[@]}" --extra dev-cuda --constraint .cache/tested.txt --override requirements/overrides.txt pyproject.toml \
    -o requirements/dev-cuda.lock
python3 tools/arm64.py requirements/images/arm64.txt "${pairs[@]}"
grep -c '^[a-z0-9].*==' requirements/dev.lock | sed 's/$/ packages locked/'
