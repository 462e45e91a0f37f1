# shellcheck shell=bash
# Part of `./x`: tests that need a program beside, and the soak test.

mpi() {
    if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
        setup
    else
        setup libopenmpi-dev openmpi-bin
    fi
    cargo build --locked --workspace --features lode/mpi
    cargo test --locked --workspace --features lode/mpi --test comm
    cargo test --locked --workspace --features lode/mpi --test training processes
}

soak() {
    export LODE_SOAK_MINUTES="${1-60}"
    if [ -n "${2-}" ]; then export LODE_SOAK_SEED="$2"; fi
    local apart=()
    if [ "$(id -u)" = 0 ]; then
        export LODE_NEEDS_DISK=1
        # Whatever is killed, its servers and its mount go with it.
        apart=(unshare --mount --pid --fork --kill-child --mount-proc)
        "${apart[@]}" true 2>/dev/null || apart=()
    fi
    "${apart[@]}" cargo test --locked --workspace --test soak --test soak_versions --test histories -- --nocapture
}

# The tests over a local folder need none of this and run with all others.
buckets() {
    local environment test=(cargo test --locked --workspace --features lode/object-store)
    environment=$(python_environment --moto) ||
        { skip "object storage over S3: $environment"; return 0; }
    LODE_MOTO="$environment/bin/moto_server" "${test[@]}" --test object_storage
    "${test[@]}" --test storage bucket
}

etcd() {
    # The function has the program's name.
    if type -P etcd >/dev/null; then setup; else setup etcd-server; fi
    cargo build --locked --workspace --features lode/etcd
    LODE_NEEDS_ETCD=1 cargo test --locked --workspace --features lode/etcd --test etcd
    cargo test --locked --workspace --features lode/etcd -p lodestore-client --lib cluster
}
