#!/usr/bin/env bash
# Makes `.cache/peers/toploc-0.1.6`, an environment of its own with the published toploc library, and prints its Python.
#
# Called by `make bench-toploc`. The published wheel does not import on torch 2.13 (another binary interface), so its source is built against the
# torch of .venv, whose packages the environment sees. Some four minutes the first time; a second run costs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=.cache/peers/toploc-0.1.6
uv=.cache/bootstrap/bin/uv

if ! "$environment/bin/python" -c "import toploc" 2>/dev/null; then
    [[ -x $uv ]] || tools/setup.sh
    mkdir -p .cache/peers
    exec 9>.cache/peers/toploc.lock
    flock -w 2400 9 || { echo "toploc: another build did not end; see who holds .cache/peers/toploc.lock" >&2; exit 1; }
    index=$(.cache/bootstrap/bin/python -m pip config get global.index-url 2>/dev/null || true)
    [[ -n $index && -z ${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-} ]] && export UV_DEFAULT_INDEX=$index
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} UV_NO_CONFIG=1 UV_SYSTEM_CERTS=1
    echo "toploc: building the published library against the torch of .venv" >&2
    rm -rf "$environment"
    "$uv" venv -q --python .venv/bin/python "$environment"
    packages=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    echo "$packages" >"$("$environment/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/machine.pth"
    VIRTUAL_ENV=$PWD/$environment "$uv" pip install -q --no-deps --no-build-isolation --no-binary toploc toploc==0.1.6
fi
echo "$environment/bin/python"
