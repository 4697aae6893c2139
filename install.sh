#!/bin/sh
# Builds urxe and installs it: the command, and the libraries that `urxe run` gives to programs.
#
#   ./install.sh [--prefix DIR]      into DIR [/usr/local as root, ~/.local otherwise]
#   ./install.sh --uninstall [--prefix DIR]
#
#   --no-build   install what has been built before
#   --debug      the development build, instead of the release
#
# DIR/bin/urxe finds DIR/lib/urxe by itself, so DIR may be moved, and nothing else is touched: no
# other program sees these libraries. DESTDIR is put before DIR, for packages.
set -eu
cd "$(dirname "$0")"

if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
build=yes profile=release uninstall=

usage() {
  sed -n '2,/^[^#]/{/^#/p}' "$0" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix) [ $# -gt 1 ] || usage; prefix=$2; shift ;;
    --prefix=*) prefix=${1#*=} ;;
    --no-build) build= ;;
    --debug) profile=debug ;;
    --uninstall) uninstall=yes ;;
    *) usage ;;
  esac
  shift
done

bin=${DESTDIR:-}$prefix/bin
lib=${DESTDIR:-}$prefix/lib/urxe

if [ -n "$uninstall" ]; then
  rm -f "$bin/urxe" "$lib/libibverbs.so.1" "$lib/librdmacm.so.1" "$lib/liburxe_preload.so"
  [ ! -d "$lib" ] || rmdir "$lib"
  exit
fi

if [ -n "$build" ]; then
  release=--release
  [ "$profile" = release ] || release=
  # shellcheck disable=SC2086  # no release is no argument
  cargo build --locked $release -p urxe -p ibverbs-abi -p urxe-preload
fi
built=${CARGO_TARGET_DIR:-target}/$profile

# The newer of what `cargo build` leaves beside the command and `cargo test` in deps.
newest() {
  found=
  for file in "$built/$1" "$built/deps/$1"; do
    if [ -e "$file" ] && { [ -z "$found" ] || [ "$file" -nt "$found" ]; }; then found=$file; fi
  done
  [ -n "$found" ] || { echo "install.sh: $built has no $1: leave out --no-build" >&2; exit 1; }
}

# In one step each, since programs that run may use, and others just load, the old ones.
put() {
  newest "$2"
  install -m "$1" "$found" "$3.new"
  mv -f "$3.new" "$3"
}

mkdir -p "$bin" "$lib"
put 644 libibverbs_abi.so "$lib/libibverbs.so.1"
put 644 liburxe_preload.so "$lib/liburxe_preload.so"
# One file under both names: the loader maps it once, and both halves share their state.
ln -sfn libibverbs.so.1 "$lib/librdmacm.so.1"
put 755 urxe "$bin/urxe"
echo "installed $bin/urxe and $lib"
case :$PATH: in *":$prefix/bin:"*) ;; *) echo "note: $prefix/bin is not in PATH" ;; esac
