#!/usr/bin/env bash
# Builds a pinned tool (a folder beside this file with go.mod and go.sum, or with package-lock.json) and prints the path of its program.
#
#   tools/build.sh minio          build unless it is built, print the path
#   tools/build.sh --path minio   print the path if it is built, otherwise nothing and status 4
#   tools/build.sh kubernetes     the same; what is printed is the folder with kube-apiserver, etcd, kubectl and the others
#
# The program is the `tool` of go.mod, or the folder's own main.go. One with a file `names` goes by several names: it gets a folder of links.
# One of Node.js is unpacked by npm; nothing of it runs before that. Its program has the folder's name, or the one in the file `program`.
# Programs are kept outside the checkout, under $XDG_CACHE_HOME/shoal/tools (default ~/.cache), named by the digest of the lock and the Go version.
# GOARCH=arm64 builds for other machines than this one, and has a name of its own.
# Status 3: this machine has no Go that is new enough; the line on stderr says how to get it.
set -euo pipefail

only_path=0
[[ ${1:-} == --path ]] && { only_path=1; shift; }
tool=${1:?usage: tools/build.sh [--path] TOOL}
cd "$(dirname "${BASH_SOURCE[0]}")/$tool"
export PATH="$PATH:/usr/local/go/bin"

if [[ -f package-lock.json ]]; then
    command -v npm >/dev/null || { echo "tools: $tool needs Node.js 20 or later with npm: \`apt-get install nodejs npm\`, or https://nodejs.org" >&2; exit 3; }
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/tools
    home=$folder/$tool-$(cat package.json package-lock.json | sha256sum | cut -c1-16)
    program=$home/node_modules/.bin/$(cat program 2>/dev/null || echo "$tool")
    if [[ ! -x $program ]]; then
        ((only_path)) && exit 4
        mkdir -p "$folder"
        exec 9>"$folder/$tool.lock"
        flock -w 3600 9
        if [[ ! -x $program ]]; then
            echo "tools: unpacking $tool; the first time this takes a minute" >&2
            rm -rf "$home.partial" && mkdir "$home.partial" && cp package.json package-lock.json "$home.partial"
            (cd "$home.partial" && nice -n 5 npm ci --ignore-scripts --omit=dev --no-audit --no-fund >&2)
            mv -T "$home.partial" "$home"
        fi
    fi
    echo "$program"
    exit
fi

wanted=$(sed -n 's/^go //p' go.mod)
no_go() {
    echo "tools: $tool needs Go $wanted or later ($1): take it from https://go.dev/dl, unpack it to /usr/local, then \`make tools\`" >&2
    exit 3
}
command -v go >/dev/null || no_go "none is on PATH"
have=$(go env GOVERSION)  # go1.26.8
# A Go older than go.mod fetches a newer one by itself unless GOTOOLCHAIN says local.
[[ $(printf '%s\n%s\n' "$wanted" "${have#go}" | sort -V | head -n1) == "$wanted" ]] || no_go "$have is here"

sources=(go.mod go.sum)
package=$(sed -n 's/^tool //p' go.mod)
flags="-s -w"
# Further flags for the linker: Helm wants to be told which Kubernetes it is made for, or it takes every cluster for 1.20.
[[ -f flags ]] && { sources+=(flags); flags+=" $(<flags)"; }
# Further settings for the compiler; CGO_ENABLED=1 needs a C compiler.
export CGO_ENABLED=0
[[ -f env ]] && { sources+=(env); set -a; . ./env; set +a; }
[[ $CGO_ENABLED == 0 ]] || command -v cc >/dev/null || { echo "tools: $tool needs a C compiler: \`apt-get install gcc libc6-dev\`, then \`make tools\`" >&2; exit 3; }
[[ -f main.go ]] && { sources+=(main.go); package=.; }
if [[ -f names ]]; then
    sources+=(names)
    version=$(sed -n 's/^.*k8s.io\/kubernetes \(v[0-9.]*\)$/\1/p' go.mod)
    # Without it the programs call themselves v0.0.0, and a kubelet refuses to be that much older than its API server.
    flags+=" -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/client-go/pkg/version.gitVersion=$version"
fi
key=$(cat "${sources[@]}" <(echo "$have${GOARCH:+ $GOARCH}") | sha256sum | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/tools
program=$folder/$tool-$key
[[ -f names ]] && program=$folder/$tool-$key/kubernetes
if [[ ! -x $program ]]; then
    ((only_path)) && exit 4
    mkdir -p "$(dirname "$program")"
    exec 9>"$folder/$tool.lock"
    flock -w 3600 9
    if [[ ! -x $program ]]; then
        echo "tools: building $tool with $have; the first time this takes some minutes" >&2
        started=$SECONDS
        # Appears whole or not at all: built under another name, then renamed.
        # A compiler lives for seconds: without garbage collection below a gigabyte the same bytes take a quarter less CPU time.
        GOFLAGS="-mod=readonly -buildvcs=false -trimpath" GOGC=off GOMEMLIMIT=1GiB nice -n 5 \
            go build -ldflags "$flags" -o "$program.partial" "$package" >&2
        if [[ -f names ]]; then
            while read -r name; do ln -sfn kubernetes "$(dirname "$program")/$name"; done <names
        fi
        mv "$program.partial" "$program"
        echo "tools: $tool is built, $((SECONDS - started)) s" >&2
    fi
fi
if [[ -f names ]]; then dirname "$program"; else echo "$program"; fi
