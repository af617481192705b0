#!/usr/bin/env bash
# Makes archives of images that are not in .cache/images, or are older than the sources that may go into them; those that are as new are left alone.
#
#   tools/archives.sh              all that the end-to-end tests load
#   tools/archives.sh operator     some
#
# Where there is no buildah, podman or docker, Debian's buildah is installed. With buildah the base is made from Debian's packages: no registry is asked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# An archive, and the images in it.
declare -A archives=([operator]=operator [protocol]=protocol [relay]=relay [redis]=redis [minio]=minio [tracker]=tracker [runtime]="trainer worker validator")

wanted=("$@")
((${#wanted[@]})) || wanted=("${!archives[@]}")
for name in "${wanted[@]}"; do
    [[ -n ${archives[$name]:-} ]] || { echo "archives: there is no archive $name; there are: ${!archives[*]}" >&2; exit 1; }
    read -ra roles <<<"${archives[$name]}"
    archive=.cache/images/$name.tar
    folders=("${roles[@]/#/images/}")
    [[ $name != runtime ]] || folders+=(images/runtime)
    if [[ -f $archive ]] && [[ -z $(find "${folders[@]}" images/*.* operator workloads pyproject.toml "requirements/images" \
        -newer "$archive" -type f -not -name '*.pyc' -print -quit) ]]; then
        continue
    fi
    packages=()
    if command -v buildah >/dev/null || { ! command -v podman >/dev/null && ! docker info >/dev/null 2>&1; }; then
        command -v buildah >/dev/null || packages+=(buildah)
        command -v mmdebstrap >/dev/null || packages+=(mmdebstrap)
    fi
    if ((${#packages[@]})); then
        command -v apt-get >/dev/null || { echo "archives: this machine lacks ${packages[*]} (names of Debian packages) to build images, and there is no apt-get" >&2; exit 1; }
        echo "archives: installing ${packages[*]} with apt-get, to build images" >&2
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}" >/dev/null
    fi
    if command -v buildah >/dev/null && ! buildah inspect --type image localhost/shoal-base:bookworm >/dev/null 2>&1; then
        tools/images.sh --base # needs no registry, and is the same everywhere
    fi
    PLAIN=1 tools/images.sh "${roles[@]}"
done
