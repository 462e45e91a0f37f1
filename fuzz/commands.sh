# shellcheck shell=bash
# Part of `./x`: fuzz targets.

# Instrumented as `cargo fuzz` does it, with stable Rust. Where RocksDB's crate compiles it, it comes
# from the main build.
fuzz_build() {
    local rocksdb=${ROCKSDB_LIB_DIR-}
    if [ -z "$rocksdb" ]; then
        build
        rocksdb=$(dirname "$(ls -t "$CARGO_TARGET_DIR"/debug/build/librocksdb-sys-*/out/librocksdb.a | head -n 1)")
    fi
    fuzz_host=$(rustc -vV | sed -n 's/^host: //p')
    ROCKSDB_LIB_DIR=$rocksdb ROCKSDB_STATIC=1 \
        RUSTC_WRAPPER="$PWD/fuzz/instrument" RUSTFLAGS="--cfg fuzzing -Cdebug-assertions" \
        CARGO_TARGET_DIR="$CARGO_TARGET_DIR/fuzz" cargo build --locked --release \
        --manifest-path fuzz/Cargo.toml --target "$fuzz_host"
}

# fuzz_target TARGET FOUND FLAGS: fuzzes from the committed corpus; finds go to the folder FOUND.
fuzz_target() {
    local target=$1 found=$2 dir="$CARGO_TARGET_DIR/fuzz"
    shift 2
    mkdir -p "$found"
    # Scratch files in memory.
    TMPDIR=/dev/shm "$dir/$fuzz_host/release/$target" -max_len=16384 -timeout=20 \
        -rss_limit_mb=2048 -artifact_prefix="$dir/$target-" "$@" "$found" "fuzz/corpus/$target"
}

# Every input of the corpora, then the same mutations of them every time, for 15 seconds at most;
# --long takes others.
fuzz_all() {
    local target dir flags=(-runs=20000 -max_total_time=15 -seed=1)
    [ -z "${LODE_LONG-}" ] || flags=(-max_total_time=60)
    fuzz_build
    dir=$(mktemp -d)
    for target in $(basename -s .rs fuzz/fuzz_targets/*.rs); do
        fuzz_target "$target" "$dir/$target" "${flags[@]}" >"$dir/log" 2>&1 ||
            { tail -n 100 "$dir/log" >&2; exit 1; }
        echo "$target: $(grep -a '^Done' "$dir/log")" >&2
    done
    rm -r "$dir"
}

fuzz() {
    local target seconds=${2-60}
    fuzz_build
    for target in ${1-$(basename -s .rs fuzz/fuzz_targets/*.rs)}; do
        fuzz_target "$target" "$CARGO_TARGET_DIR/fuzz/corpus/$target" -max_total_time="$seconds"
    done
}
