# Puts a server that speaks MongoDB's protocol into a folder of its own: FerretDB, built from its published source, and behind
# it PostgreSQL with DocumentDB, from a Debian release that has it. Nothing is installed on the machine, and nobody has to be
# root. Usage: install.sh FOLDER FERRETDB_VERSION
#
# The packages are fetched by apt from the mirrors in the machine's own sources, and checked by it as always; the sources of
# FerretDB by Go.
set -eu
umask 022
folder=$1
ferretdb=$2
suite=forky
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { echo "xtask: mongodb: $*" >&2; }

mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock --nonblock 9 || { say "another run is at it: waiting"; flock 9; }
[ ! -d "$folder" ] || exit 0

for need in apt-get dpkg-deb tar "$keyring"; do
    command -v "$need" >/dev/null || [ -e "$need" ] || { say "needs $need: is this a Debian?"; exit 1; }
done
new=$folder.new
chmod -R u+w "$new" 2>/dev/null || true
rm -rf "$new"
mkdir -p "$new/apt/lists/partial" "$new/apt/cache/archives/partial" "$new/bin"
: >"$new/apt/status"

# An apt that knows this one suite, and of no package that it is installed.
own_apt() {
    apt-get -qq -o Dir::State::status="$new/apt/status" -o Dir::State::lists="$new/apt/lists" \
        -o Dir::Cache="$new/apt/cache" -o Dir::Etc::sourcelist="$new/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o APT::Install-Recommends=false -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none \
        -o Acquire::Retries=3 -o Debug::NoLocking=true "$@"
}

. /etc/os-release
mirrors=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v release="${VERSION_CODENAME:-}" '$1 == release && $2 == "main" && !seen[$3]++ { print $3 }')
found=
for mirror in $mirrors; do
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$new/apt/sources.list"
    if own_apt update -o APT::Update::Error-Mode=any 2>"$new/apt/log"; then found=yes; break; fi
done
[ -n "$found" ] || { cat "$new/apt/log" >&2 2>/dev/null || true; say "no mirror of this machine has Debian's $suite"; exit 1; }

say "fetching packages of Debian's $suite"
own_apt install --yes --download-only postgresql-18-documentdb golang-go >/dev/null
for package in "$new"/apt/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$new" --no-same-owner \
        --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale' --exclude='./usr/share/info'
done
rm -rf "$new/apt"

# What its maintainer's script would do.
extensions=$new/usr/share/postgresql/18/extension
[ -e "$extensions/postgis.control" ] || ln -s postgis-3.control "$extensions/postgis.control"

# They were linked for another C library than this machine may have: each is started through the loader that came with it.
for program in postgres initdb psql; do
    real=$new/usr/lib/postgresql/18/bin/$program
    mv "$real" "$real.real"
    cat >"$real" <<'WRAPPER'
#!/bin/sh
usr=${0%/*}/../../../..
set -- --argv0 "$0" "$0.real" "$@"
for loader in "$usr"/lib/*-linux-gnu*/ld-linux*.so.*; do :; done
lib=${loader%/*}
exec "$loader" --inhibit-cache --library-path "$lib:$lib/blas:$lib/lapack:$usr/lib/postgresql/18/lib" "$@"
WRAPPER
    chmod 755 "$real"
done

say "building FerretDB $ferretdb"
export GOPATH="$new/go" GOBIN="$new/bin" GOCACHE="$new/go/cache" GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS='-modcacherw -buildvcs=false'
go=$(echo "$new"/usr/lib/go-*/bin/go)
"$go" install "github.com/FerretDB/FerretDB/v2/cmd/ferretdb@v$ferretdb" 2>"$new/go.log" ||
    { tail -n 20 "$new/go.log" >&2; say "FerretDB can't be built"; exit 1; }
rm -rf "$new/go" "$new/go.log" "$new"/usr/lib/go* "$new"/usr/share/go*

"$new/usr/lib/postgresql/18/bin/postgres" --version >&2
# Last, and at once: who finds the folder finds it whole.
mv "$new" "$folder"
say "is in $folder"
