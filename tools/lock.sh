#!/usr/bin/env bash
# Resolves requirements/{bootstrap,dev,oracle}.lock and requirements/images/*.lock from requirements/bootstrap.in and pyproject.toml (`make lock`).
#
# Hashes pin every file; no index is named, so that the lock works behind any mirror. Versions already locked are kept where they still fit;
# `UPGRADE=1 make lock` takes newer ones. Needs only Python 3.11 with its venv module.
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

"$folder/venv/bin/uv" pip compile "${options[@]}" requirements/bootstrap.in -o requirements/bootstrap.lock
"$folder/venv/bin/uv" pip compile "${options[@]}" --extra dev --override requirements/overrides.txt pyproject.toml -o requirements/dev.lock
# The oracle's environment has the versions of .venv, so that a difference between the two trainers is never one of torch.
"$folder/venv/bin/uv" pip compile "${options[@]}" --extra trainer --extra oracle --constraint requirements/dev.lock --override requirements/overrides.txt \
    pyproject.toml -o requirements/oracle.lock
# An image has what its role needs, in the versions that were tested.
mkdir -p requirements/images
for role in operator protocol relay; do
    "$folder/venv/bin/uv" pip compile "${options[@]}" --extra "$role" --constraint requirements/dev.lock --override requirements/overrides.txt \
        pyproject.toml -o "requirements/images/$role.lock"
done
# Trainer, worker and validator stand on one runtime. Plain vllm is the CUDA build; the one package that it wants in another version is left to it.
"$folder/venv/bin/uv" pip compile "${options[@]}" --extra trainer --extra worker --extra validator --extra lm-eval --constraint requirements/dev.lock \
    --override requirements/overrides.txt --override requirements/runtime-cpu.txt pyproject.toml -o requirements/images/runtime-cpu.lock
mkdir -p .cache # a name that the lock can give for it
sed -n 's/^\([A-Za-z0-9].*==[^ ]*\).*/\1/p' requirements/dev.lock | grep -v '^apache-tvm-ffi=' >.cache/tested.txt
"$folder/venv/bin/uv" pip compile "${options[@]}" --extra trainer --extra cuda --extra validator --extra lm-eval --constraint .cache/tested.txt \
    --override requirements/overrides.txt pyproject.toml -o requirements/images/runtime-cuda.lock
grep -c '^[a-z0-9].*==' requirements/dev.lock | sed 's/$/ packages locked/'
