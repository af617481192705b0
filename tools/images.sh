#!/usr/bin/env bash
# Builds the images of images/ with buildah, podman or docker, whichever is there (`make images`), or the base that they stand on (`make base-image`).
#
#   tools/images.sh                     every image
#   tools/images.sh operator relay      some
#   tools/images.sh --base              localhost/shoal-base:bookworm, from Debian's packages, for machines without a container registry
#
# BUILDER=podman chooses the program, TAG=1.2.3 the tag (default: the version of the project), REPOSITORY=registry.example.org/shoal what stands
# before the role, BASE=... the base image (default: debian:bookworm-slim, or the base made here if it is there), VARIANT=cuda the variant of runtime,
# trainer, worker and validator (default: cpu; others are tagged 1.2.3-cuda), ARCH=arm64 or amd64 the machines that it is for (default: such as this one;
# others are tagged 1.2.3-arm64, and are built in emulation: images/README.md). Settings of this machine that a build needs (its certificates, apt's and
# pip's configuration) go in as build secrets and into no layer. Prints name and compressed size of each, and leaves archives in .cache/images for
# `docker load` and `ctr images import`: one an image, and runtime.tar for those that share the runtime's layers, with each layer once. PLAIN=1 spares
# compressing archives only to weigh them: the sizes are then those of the archives. PUSH=FOLDER leaves no archives: it pushes each image to REPOSITORY's
# registry as role:1.2.3-amd64 (role:1.2.3-cuda-arm64 and so on), and writes its digest to FOLDER/role-amd64. A registry of this machine is spoken to without TLS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "images: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

builder=${BUILDER:-}
for candidate in buildah podman docker; do
    [[ -n $builder ]] && break
    command -v "$candidate" >/dev/null || continue
    [[ $candidate != docker ]] || docker info >/dev/null 2>&1 || continue
    builder=$candidate
done
[[ -n $builder ]] || fail "there is no buildah, podman, or docker with a running daemon; on Debian: apt-get install -y buildah"

own=$(uname -m)
case $own in x86_64) own=amd64 ;; aarch64) own=arm64 ;; esac
arch=${ARCH:-$own}
[[ $arch == amd64 || $arch == arm64 ]] || fail "ARCH is $arch; images are for: amd64 arm64"
foreign=
platform=()
if [[ $arch != "$own" ]]; then
    foreign=-$arch
    platform=(--platform "linux/$arch")
    # Docker asks its daemon, which may have an emulator of its own. F: the kernel keeps the emulator open, and it is found inside an image too.
    machine=$([[ $arch == arm64 ]] && echo aarch64 || echo x86_64)
    registered=${BINFMT_MISC:-/proc/sys/fs/binfmt_misc}/qemu-$machine
    [[ $builder == docker ]] || { grep -qx enabled "$registered" && grep -q '^flags:.*F' "$registered"; } 2>/dev/null ||
        fail "images for $arch run programs of $arch as they are built, and this machine ($own) runs none; on Debian: apt-get install -y qemu-user-static" \
            "binfmt-support, then see that /proc/sys/fs/binfmt_misc is mounted; or build on a machine of $arch"
fi

push=${PUSH:-}
insecure=()
if [[ -n $push ]]; then
    [[ $builder != docker ]] || fail "docker does not say the digest of what it pushes; PUSH needs buildah or podman"
    [[ ${REPOSITORY:-} == */* ]] || fail "PUSH needs a registry in REPOSITORY, such as registry.example.org/shoal"
    [[ ! $REPOSITORY =~ ^(localhost|127\.[0-9.]+)[:/] ]] || insecure=(--tls-verify=false)
    mkdir -p "$push"
fi

local_base=localhost/shoal-base:bookworm$foreign
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
tag=${TAG:-$version}
repository=${REPOSITORY:-shoal}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p .cache/images

import_base() {  # $1: a root file system as a tar file
    case $builder in
        buildah)
            local container
            container=$(buildah from scratch)
            buildah add -q "$container" "$1" / >/dev/null
            buildah config --arch "$arch" --env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$container"
            buildah commit -q --rm "$container" "$local_base" >/dev/null
            ;;
        *) "$builder" import "${platform[@]}" --change 'ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin' "$1" "$local_base" >/dev/null ;;
    esac
}

if [[ ${1:-} == --base ]]; then
    command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: apt-get install -y mmdebstrap"
    [[ -z $foreign ]] || command -v arch-test >/dev/null || fail "arch-test is missing, by which mmdebstrap sees an emulator: apt-get install -y arch-test"
    say "making $local_base from Debian's packages, some two minutes"
    # Packages come from where this machine gets its own; the file's settings stay outside the image.
    mmdebstrap --quiet --architectures="$arch" --variant=minbase --include=ca-certificates \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/*' \
        bookworm "$scratch/root.tar"
    import_base "$scratch/root.tar"
    say "$local_base is made"
    exit 0
fi

base=${BASE:-}
[[ -z $base ]] && "$builder" inspect --type image "$local_base" >/dev/null 2>&1 && base=$local_base
arguments=(--build-arg "VERSION=$tag")
[[ -n $base ]] && arguments+=(--build-arg "BASE=$base")

secrets=()
[[ -s /etc/ssl/certs/ca-certificates.crt ]] && secrets+=(--secret "id=ca,src=/etc/ssl/certs/ca-certificates.crt")
if command -v apt-config >/dev/null; then
    # What differs from Debian's own: proxies and checks; hooks of this machine are none of the image's business.
    apt-config dump | grep -E '^Acquire::(https?::Proxy|Check-(Valid-Until|Date)|https?::Verify)' >"$scratch/apt.conf" || true
    secrets+=(--secret "id=apt,src=$scratch/apt.conf")
fi
for file in "${PIP_CONFIG_FILE:-}" "$HOME/.config/pip/pip.conf" /etc/pip.conf; do
    # `cert` names a file of this machine; the build has the same certificates elsewhere.
    [[ -s $file ]] && { grep -vE '^cert *=' "$file" >"$scratch/pip.conf" || true; secrets+=(--secret "id=pip,src=$scratch/pip.conf"); break; }
done

variant=${VARIANT:-cpu}
[[ $variant == cpu || $variant == cuda ]] || fail "VARIANT is $variant; variants are: cpu cuda"
arguments+=(--build-arg "VARIANT=$variant")
suffix=
[[ $variant == cpu ]] || suffix=-$variant
variant_suffix=$suffix
suffix+=$foreign
on_runtime=" trainer worker validator "

name_of() {
    if [[ " runtime$on_runtime" == *" $1 "* ]]; then echo "$repository/$1:$tag$suffix"; else echo "$repository/$1:$tag$foreign"; fi
}

# A name without a host is one of this machine's own images, in words that mean no other: buildah and podman take `shoal/relay` for
# `registry.example.org/shoal/relay` too, if that is here, as after a release.
here() {  # $1: a name
    local host=${1%%/*}
    if [[ $builder == docker || $host == *[.:]* || $host == localhost ]]; then echo "$1"; else echo "localhost/$1"; fi
}

roles=("$@")
((${#roles[@]})) || mapfile -t roles < <(find images -mindepth 2 -name Dockerfile -printf '%h\n' | sed 's#^images/##' | sort)
wanted=()
for role in "${roles[@]}"; do
    [[ -f images/$role/Dockerfile ]] || fail "there is no images/$role/Dockerfile; roles are: $(ls -d images/*/ | xargs -n1 basename | xargs)"
    [[ $on_runtime == *" $role "* && " ${wanted[*]:-} " != *" runtime "* ]] && wanted+=(runtime)
    [[ " ${wanted[*]:-} " == *" $role "* ]] || wanted+=("$role")
done

build() {  # $1: role
    local role=$1 name context=. command=(build) given=("${arguments[@]}")
    name=$(name_of "$role")
    if [[ $role == minio ]]; then
        context=.cache/images/minio$foreign
        mkdir -p "$context"
        install -m 0755 "$(GOARCH=${foreign#-} tools/build.sh minio)" "$context/minio"
        cp tools/minio/go.mod images/sbom.py "$context"
    fi
    if [[ $on_runtime == *" $role "* ]]; then
        given+=(--build-arg "RUNTIME=$(here "$(name_of runtime)")")
    fi
    say "building $name on ${base:-the base of its Dockerfile} with $builder"
    # In a chroot: needs no container runtime, and works where cgroups are not what a runtime wants.
    [[ $builder == buildah ]] && command=(bud --layers --isolation "${BUILDAH_ISOLATION:-chroot}")
    "$builder" "${command[@]}" -q --network=host "${platform[@]}" "${secrets[@]}" "${given[@]}" \
        --build-arg "REVISION=$revision" -f "images/$role/Dockerfile" -t "$(here "$name")" "$context" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2; fail "$name was not built$([[ -n $base ]] || echo "; where no registry has the base of its Dockerfile, make one first: make base-image${foreign:+ ARCH=$arch}")"; }
}

push() {  # $1: role
    local name to
    name=$(name_of "$1")
    to=${name%"$foreign"}-$arch
    say "pushing $to"
    "$builder" push -q "${insecure[@]}" --digestfile "$scratch/digest" "$(here "$name")" "docker://$to"
    mv "$scratch/digest" "$push/$1$([[ $on_runtime == *" $1 "* ]] && echo "$variant_suffix" || true)-$arch"
}

plain=${PLAIN:-}
weigh() { if [[ -n $plain ]]; then wc -c; else gzip -1 | wc -c; fi; }  # of an archive at stdin, as it travels
report() {  # $1: name, $2: bytes, $3: when its build began, $4: archive
    printf '%-40s %5d MB %s  %4d s  %s\n' "$1" "$(($2 / 1000000))" "${plain:+not }compressed" "$((SECONDS - $3))" "$4"
}

# The runtime of the same files is not built again: to see that nothing changed, buildah would read all its gigabytes.
runtime_inputs=$(cat images/runtime/Dockerfile images/install.sh requirements/bootstrap.lock "requirements/images/runtime-$variant.lock" <(echo "$base${foreign:+ $arch}") | sha256sum)
runtime_known=$(here "shoal/runtime:${variant}-${runtime_inputs:0:16}")

revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
sharing=()
for role in "${wanted[@]}"; do
    started=$SECONDS
    name=$(name_of "$role")
    archive=.cache/images/$role$foreign.tar
    if [[ $role == runtime ]] && "$builder" inspect --type image "$runtime_known" >/dev/null 2>&1; then
        "$builder" tag "$runtime_known" "$(here "$name")"
        say "$name is there already"
        continue
    fi
    build "$role"
    if [[ $role == runtime ]]; then
        "$builder" tag "$(here "$name")" "$runtime_known"
        say "$name is built, $((SECONDS - started)) s"
    elif [[ -n $push ]]; then
        push "$role"
    elif [[ $on_runtime == *" $role "* ]]; then
        sharing+=("$name")
        say "$name is built, $((SECONDS - started)) s"
    else
        case $builder in
            buildah) rm -f "$archive"; buildah push -q "$(here "$name")" "docker-archive:$archive:$name" ;;
            *) "$builder" save -o "$archive" "$(here "$name")" ;;
        esac
        report "$name" "$(weigh <"$archive")" "$started" "$archive"
    fi
done

((${#sharing[@]})) || exit 0
started=$SECONDS
archive=.cache/images/runtime$suffix.tar
if [[ $builder == buildah ]]; then
    # An archive of buildah's holds one image; this one holds all of them, and each compressed layer once.
    # Beside the archive: a runtime of gigabytes may be more than the machine's folder for temporary files holds.
    layout=$(mktemp -d .cache/images/layout.XXXXXX)
    trap 'rm -rf "$scratch" "$layout"' EXIT
    for name in "${sharing[@]}"; do buildah push -q --compression-level 1 "$(here "$name")" "oci:$layout:$name"; done
    python3 images/pack.py "$layout" "$archive"
else
    mapfile -t ours < <(for name in "${sharing[@]}"; do here "$name"; done)
    "$builder" save $([[ $builder != podman ]] || echo -m) -o "$archive" "${ours[@]}"
    for name in "${ours[@]}"; do report "$name" "$("$builder" save "$name" | weigh)" "$started" "$archive"; done
fi
