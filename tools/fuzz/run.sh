#!/bin/sh
# Fuzzes the compiled core under AddressSanitizer and UndefinedBehaviorSanitizer. Needs clang with its libFuzzer:
#   apt-get install clang libclang-rt-14-dev
#
#   tools/fuzz/run.sh FOLDER [libFuzzer's options, for example -runs=200000]
#   PROGRAM=fuzz_png tools/fuzz/run.sh FOLDER ...      the decoder of PNGs; needs libdeflate-dev
#   PROGRAM=fuzz_planes tools/fuzz/run.sh FOLDER ...   decode-ready records, whose checksums are repaired
#   PROGRAM=fuzz_pixels tools/fuzz/run.sh FOLDER ...   placing and adjusting of pixels
#
# Runs in November 2026: 1,870,000 inputs with clang 14 and libjpeg-turbo 2.1.5, nothing found; then 35,959 since two
# intervals are decoded at once, nothing found.
# Of decode-ready records, encoder and decoder: 1,126,886 inputs, of which 102,269 since the last change of
# what reads tiles, nothing found.
#
# FOLDER gets the program, the corpus, and for every finding an input that reproduces it (program FOLDER/crash-...).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?usage: run.sh FOLDER [options]}
shift
mkdir -p "$folder/corpus"
native=$here/../../dlio/native
program=${PROGRAM:-fuzz_core}
libraries="libjpeg"
sources=$(ls "$native"/*.cpp "$native"/augment/*.cpp "$native"/crc32c/*.cpp "$native"/jpeg/*.cpp "$native"/pixels/*.cpp "$native"/planes/*.cpp "$native"/resize/*.cpp)
[ "$program" != fuzz_png ] || libraries=libdeflate sources="$native/png/png.cpp $native/memory.cpp"
# shellcheck disable=SC2046
clang++ -std=c++17 -O1 -g -DDLIO_SANITIZED -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
  -I "$native" $(pkg-config --cflags $libraries) "$here/$program.cpp" $sources \
  -o "$folder/$program" $(pkg-config --libs $libraries)
"${PYTHON:-python3}" "$here/make_seeds.py" "$folder/seeds"
exec "$folder/$program" -artifact_prefix="$folder/" -max_len=16384 -timeout=30 -rss_limit_mb=4096 "$@" \
  "$folder/corpus" "$folder/seeds"
