#!/usr/bin/env bash
# Runs `python -m benchmarks.gpu` with the arguments given: in .venv, or, where there is none, with the machine's python3 and the wheels of
# .cache/gpu-wheels, for a machine without a network that has torch, transformers and pytest.
#
#   tools/gpu.sh [ARGUMENT ...]   `make gpu`
#   tools/gpu.sh --fetch-wheels   `make gpu-wheels`: fetches these wheels, some 24 MB, for Python 3.12 on x86-64 (PYTHON_VERSION=3.13: for another)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wheels=.cache/gpu-wheels site=.cache/gpu-site
# What the parts import and such a machine has not, as our locks pin it; TRL and what it needs at the end.
packages=(pydantic pydantic-core annotated-types typing-inspection rfc8785 obstore cryptography cffi pycparser
    http-message-signatures http-sf google-re2 minio zstandard structlog tenacity
    opentelemetry-api opentelemetry-sdk opentelemetry-semantic-conventions opentelemetry-exporter-otlp-proto-http
    opentelemetry-exporter-otlp-common opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-http-transport
    opentelemetry-proto googleapis-common-protos trl datasets dill multiprocess)

if [[ ${1:-} == --fetch-wheels ]]; then
    pinned=()
    for package in "${packages[@]}"; do
        line=$(cat requirements/dev.lock requirements/oracle.lock | grep -m1 -E "^$package==") ||
            { echo "gpu: no lock pins $package" >&2; exit 1; }
        pinned+=("${line%% *}")
    done
    platforms=()
    for glibc in 2_34 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
    rm -rf "$wheels.new"
    python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "${PYTHON_VERSION:-3.12}" \
        "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$wheels.new" "${pinned[@]}"
    rm -rf "$wheels" && mv "$wheels.new" "$wheels"
    du -sh "$wheels"
    exit
fi

python=.venv/bin/python path=operator:workloads
if [[ ! -x $python ]]; then
    python=${PYTHON:-python3}
    if compgen -G "$wheels/*.whl" >/dev/null; then
        rm -rf "$site"
        "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl
        path+=:$site
    fi
fi
PYTHONPATH=$PWD:$PWD/${path//:/:$PWD/}${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m benchmarks.gpu "$@"
