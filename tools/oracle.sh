#!/usr/bin/env bash
# Makes `.cache/oracle`, an environment of its own with TRL 1.16.0 from requirements/oracle.lock, and prints its Python.
#
# Called by `make golden` and `make bench-trainer`. TRL is what our trainer is compared with and is never in .venv. Versions of torch and
# transformers are those of .venv; files come from uv's cache by hard link where they can, so that they are on disk once. A second run
# costs nothing; an interrupted one is done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=.cache/oracle
uv=.cache/bootstrap/bin/uv
wanted=$(sha256sum requirements/oracle.lock | cut -d' ' -f1)

if [[ ! -f $environment/.ready || $(<"$environment/.ready") != "$wanted" ]]; then
    [[ -x $uv ]] || tools/setup.sh
    exec 9>.cache/oracle.lock
    flock -w 2400 9 || { echo "oracle: another installation did not end; see who holds .cache/oracle.lock" >&2; exit 1; }
    index=$(.cache/bootstrap/bin/python -m pip config get global.index-url 2>/dev/null || true)
    [[ -n $index && -z ${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-} ]] && export UV_DEFAULT_INDEX=$index
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} UV_NO_CONFIG=1 UV_SYSTEM_CERTS=1
    echo "oracle: installing TRL and what it needs from requirements/oracle.lock" >&2
    rm -rf "$environment"
    "$uv" venv -q --python .venv/bin/python "$environment"
    VIRTUAL_ENV=$PWD/$environment "$uv" pip install -q --no-deps --require-hashes -r requirements/oracle.lock
    echo "$wanted" >"$environment/.ready"
fi
echo "$environment/bin/python"
