# shellcheck shell=bash
# Part of `./x`: the RocksDB of all builds.

# RocksDB as a library beside all target directories. A dozen of its sources go into one unit, as in its
# own `make unity`: most of the time of a source is in headers that all of them read. Its crate compiles
# it source by source on other machines, or where a unit fails.
rocksdb() {
    [ -z "${ROCKSDB_LIB_DIR-}" ] && [ "$(uname -sm)" = "Linux x86_64" ] || return 0
    local version flags folder
    version=$(sed -n '/^name = "librocksdb-sys"/{n;s/version = "\(.*\)"/\1/p}' Cargo.lock)
    # Those of the crate's build.rs and of its profile in Cargo.toml.
    flags="-O2 -fPIC -ffunction-sections -fdata-sections -fno-omit-frame-pointer -m64 -msse2 -std=c++20 -w
        -include cstdint -DNDEBUG=1 -DHAVE_ALIGNED_NEW -DHAVE_UINT128_EXTENSION -DOS_LINUX
        -DROCKSDB_PLATFORM_POSIX -DROCKSDB_LIB_IO_POSIX -DROCKSDB_SCHED_GETCPU_PRESENT
        -DROCKSDB_AUXV_GETAUXVAL_PRESENT -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT"
    folder="${XDG_CACHE_HOME:-$HOME/.cache}/lodestore/rocksdb-$version-$(
        { c++ --version; echo "$flags"; } | cksum | cut -d ' ' -f 1)"
    if [ ! -e "$folder/librocksdb.a" ]; then
        say "compiling RocksDB, once for all builds: 3 to 4 minutes on two cores"
        compile_rocksdb "$version" "$flags" "$folder" || {
            say "RocksDB's crate compiles it now: 10 to 20 minutes on two cores"
            return 0
        }
    fi
    export ROCKSDB_LIB_DIR="$folder" ROCKSDB_STATIC=1
}

# compile_rocksdb VERSION FLAGS FOLDER: the library appears in the folder by one rename, or not at all.
compile_rocksdb() (
    source=${CARGO_HOME:-$HOME/.cargo}/registry/src
    cargo fetch --locked --target "$(rustc -vV | sed -n 's/^host: //p')" || exit
    source=$(ls -d "$source"/*/"librocksdb-sys-$1" | head -n 1) || exit
    work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT || exit
    grep -v util/build_version.cc "$source/rocksdb_lib_sources.txt" | split -l 12 - "$work/unit-" || exit
    for unit in "$work"/unit-*; do
        sed "s|.*|#include \"$source/rocksdb/&\"|" "$unit" >"$unit.cc"
    done
    cp "$source/build_version.cc" "$work/" || exit
    units=("$work"/*.cc)
    # A unit takes up to 1.3 GB.
    jobs=$(awk '/^MemAvailable/ { print int($2 / 1.5e6) }' /proc/meminfo)
    jobs=$((jobs < 1 ? 1 : jobs < $(nproc) ? jobs : $(nproc)))
    n_done=0
    export FLAGS="$2 -I$source -I$source/rocksdb -I$source/rocksdb/include"
    # shellcheck disable=SC2016
    printf '%s\n' "${units[@]}" | xargs -n 1 -P "$jobs" sh -c 'c++ $FLAGS -c "$0" -o "${0%.cc}.o" && echo' |
        while read -r _; do
            n_done=$((n_done + 1))
            printf '  RocksDB: %d of %d units\n' "$n_done" "${#units[@]}" >&2
        done || exit
    mkdir -p "$3" && ar crs "$3/new-$$" "$work"/*.o && mv "$3/new-$$" "$3/librocksdb.a"
)
