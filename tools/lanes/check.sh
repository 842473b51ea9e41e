#!/bin/sh
# Compile every CPU kernel for AArch64, and compare bits of its NEON lanes, under qemu, with those of this machine's plain C++.
# Needs, on Debian and Ubuntu: apt-get install g++ g++-aarch64-linux-gnu qemu-user-static
set -eu
cd "$(dirname "$0")/../../src/forerun/kernels/cpu"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options="-std=c++20 -O2 -ffp-contract=off -Wall -Wextra -Wno-unused-function -pthread -static -I."
sources="../../../../tools/lanes/bits.cpp neon.cpp portable.cpp pool.cpp"

# shellcheck disable=SC2086  # split into words on purpose
aarch64-linux-gnu-g++ $options $sources -o "$work/neon"
# Plain C++ here: tests/kernels/cpu compares the instruction sets of x86 with it.
# shellcheck disable=SC2086
g++ $options $sources -o "$work/plain"

qemu-aarch64-static "$work/neon" >"$work/neon.txt"
"$work/plain" >"$work/plain.txt"
diff "$work/plain.txt" "$work/neon.txt" || { echo "lanes: NEON differs"; exit 1; }
echo "lanes: NEON has the bits of plain C++ in $(wc -l <"$work/neon.txt") operations"
