#!/bin/sh
# Makes /opt/shoal in the build stage of an image: a virtual environment with the packages of one lock, by hash, and Shoal itself; all compiled.
#
#   images/install.sh operator                 requirements/images/operator.lock and Shoal
#   images/install.sh runtime-cpu packages     the lock only
#   images/install.sh runtime-cuda libraries   of a runtime's lock only torch, Triton and NVIDIA's libraries: a layer of their own
#   images/install.sh runtime-cuda rest        the other packages of that lock
#   images/install.sh shoal shoal              Shoal only, for an image whose packages lie in another one
#   images/install.sh none tools               uv alone, for the steps of an image that mounts it
#
# Runs in the root of the repository. uv, pinned by requirements/bootstrap.lock, lives in bootstrap/ here, and stays behind with the stage.
set -eu
lock=$1
what=${2:-both}
libraries='^(nvidia-|torch==|triton==)'
export UV_NO_CONFIG=1 UV_SYSTEM_CERTS=1 UV_NO_CACHE=1 UV_HTTP_TIMEOUT=300 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

bootstrap=$PWD/bootstrap
if [ ! -x "$bootstrap/bin/uv" ]; then
    python3 -m venv "$bootstrap"
    "$bootstrap/bin/python" -m pip install -q --no-cache-dir --require-hashes -r requirements/bootstrap.lock
fi
[ "$what" != tools ] || exit 0
# pip's own configuration names the index where a site has its own; uv does not read it.
index=$("$bootstrap/bin/python" -m pip config get global.index-url 2>/dev/null || true)
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"

[ -d /opt/shoal ] || python3 -m venv --without-pip /opt/shoal
export VIRTUAL_ENV=/opt/shoal
case $what in
    libraries) awk -v of="$libraries" '/^[a-z0-9]/ { kept = $0 ~ of } kept' "requirements/images/$lock.lock" >/tmp/packages.lock ;;
    rest) awk -v of="$libraries" '/^[a-z0-9]/ { kept = $0 !~ of } kept' "requirements/images/$lock.lock" >/tmp/packages.lock ;;
    shoal) : >/tmp/packages.lock ;;
    *) cp "requirements/images/$lock.lock" /tmp/packages.lock ;;
esac
if [ -s /tmp/packages.lock ]; then
    "$bootstrap/bin/uv" pip install -q --no-deps --require-hashes -r /tmp/packages.lock
fi
if [ "$what" = shoal ] || [ "$what" = both ]; then
    "$bootstrap/bin/uv" build -q --wheel --out-dir /tmp/wheel
    "$bootstrap/bin/uv" pip install -q --no-deps /tmp/wheel/*.whl
fi
if [ "$lock" = runtime-cpu ]; then
    # The same torch that was tested is a CUDA build. What it opens only when it finds a GPU is half a gigabyte; what it is linked with stays.
    site=$(echo /opt/shoal/lib/python3*/site-packages)
    rm -rf "$site"/nvidia/*/include "$site"/nvidia/cudnn/lib/libcudnn_*.so.* "$site"/nvidia/cu13/lib/libnvrtc.alt.so.* \
        "$site"/nvidia/cu13/lib/libnvperf_*.so* "$site"/nvidia/nvshmem/lib/*.a "$site"/nvidia/nvshmem/lib/*.bc "$site"/torch/include
fi
# Hashed byte code: valid whatever times a copy of the files has. Compiled again it would lie in two layers, so once, behind the last package.
if [ "$what" != libraries ]; then
    /opt/shoal/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/shoal/lib || true # Python 2 files in some packages' tests
fi
rm -rf /tmp/packages.lock /tmp/wheel
