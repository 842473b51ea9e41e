#!/bin/sh
# Install system packages that may be missing on Debian and Ubuntu: Python's venv, and for the CPU kernels (docs/cpu.md) a C++ compiler and
# Python's headers. Installs only as root and never asks for rights; otherwise prints what is missing and exits 0.
set -u
PYTHON=${PYTHON:-python3}

missing=
[ "$(uname -s)" = Linux ] || exit 0
package=$("$PYTHON" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
"$PYTHON" -c 'import ensurepip' 2>/dev/null || missing="$missing $package-venv"
"$PYTHON" -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || missing="$missing $package-dev"
[ -n "${CXX:-}" ] || command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || missing="$missing g++"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # split into words on purpose
    apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 && exit 0
    # shellcheck disable=SC2086
    apt-get update -qq >/dev/null 2>&1 && apt-get install -qq -y --no-install-recommends $missing >/dev/null && exit 0
fi

echo "note: not installed here: $missing"
echo "note: without a compiler for the CPU kernels, a CPU is several times slower. As root: apt-get install $missing"
