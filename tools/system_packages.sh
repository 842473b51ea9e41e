#!/bin/sh
# Try to install the two system packages that help and may be missing on Debian and Ubuntu: a fast BLAS, and Python's venv.
# Installs only as root, never asks for rights; where it cannot, it says what is lost and how to get it, and the set-up goes on.
set -u
PYTHON=${PYTHON:-python3}

missing=
[ "$(uname -s)" = Linux ] || exit 0
"$PYTHON" -c 'import ctypes; ctypes.CDLL("libopenblas.so.0")' 2>/dev/null || missing="libopenblas0-pthread"
"$PYTHON" -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # a list of words
    apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 && exit 0
    # shellcheck disable=SC2086
    apt-get update -qq >/dev/null 2>&1 && apt-get install -qq -y --no-install-recommends $missing >/dev/null && exit 0
fi

echo "note: not installed here: $missing"
echo "note: without OpenBLAS everything works on a CPU, several times slower. As root: apt-get install $missing"
