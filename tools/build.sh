#!/usr/bin/env bash
# Builds a pinned Go tool (a folder beside this file with go.mod and go.sum) and prints the path of its program.
#
#   tools/build.sh minio          build unless it is built, print the path
#   tools/build.sh --path minio   print the path if it is built, otherwise nothing and status 4
#
# Programs are kept outside the checkout, under $XDG_CACHE_HOME/shoal/tools (default ~/.cache), named by the digest of the lock and the Go version.
# Status 3: this machine has no Go that is new enough; the line on stderr says how to get it.
set -euo pipefail

only_path=0
[[ ${1:-} == --path ]] && { only_path=1; shift; }
tool=${1:?usage: tools/build.sh [--path] TOOL}
cd "$(dirname "${BASH_SOURCE[0]}")/$tool"
export PATH="$PATH:/usr/local/go/bin"

wanted=$(sed -n 's/^go //p' go.mod)
no_go() {
    echo "tools: $tool needs Go $wanted or later ($1): take it from https://go.dev/dl, unpack it to /usr/local, then \`make tools\`" >&2
    exit 3
}
command -v go >/dev/null || no_go "none is on PATH"
have=$(go env GOVERSION)  # go1.26.8
# A Go older than go.mod fetches a newer one by itself unless GOTOOLCHAIN says local.
[[ $(printf '%s\n%s\n' "$wanted" "${have#go}" | sort -V | head -n1) == "$wanted" ]] || no_go "$have is here"

key=$(cat go.mod go.sum <(echo "$have") | sha256sum | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/tools
program=$folder/$tool-$key
if [[ ! -x $program ]]; then
    ((only_path)) && exit 4
    mkdir -p "$folder"
    exec 9>"$folder/$tool.lock"
    flock -w 3600 9
    if [[ ! -x $program ]]; then
        echo "tools: building $tool with $have; the first time this takes some minutes" >&2
        started=$SECONDS
        # Appears whole or not at all: built under another name, then renamed.
        CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false -trimpath" nice -n 5 \
            go build -ldflags "-s -w" -o "$program.partial" "$(sed -n 's/^tool //p' go.mod)" >&2
        mv "$program.partial" "$program"
        echo "tools: $tool is built, $((SECONDS - started)) s" >&2
    fi
fi
echo "$program"
