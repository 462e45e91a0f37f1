# shellcheck shell=bash
# Part of `./x`: environments, tests and wheel of the Python package.

# find_python [VERSION...]: prints a Python from 3.10 on that can make environments, of another version
# than each VERSION; nothing where there is none. Those of pyenv count, whichever it has selected.
find_python() {
    local candidate
    for candidate in "${LODESTORE_PYTHON-}" python3 python3.14 python3.13 python3.12 python3.11 python3.10 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys, venv, ensurepip
version = sys.version_info[:2]
sys.exit(version < (3, 10) or "%d.%d" % version in sys.argv[1:])' "$@" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
}

# python_folder [--all | --graphbolt | --moto]: prints where the environment of that Python is, or fails without a Python.
python_folder() {
    local python
    python=$(find_python)
    [ -n "$python" ] || return 1
    echo "${XDG_CACHE_HOME:-$HOME/.cache}/lodestore/$(
        "$python" -c 'import sys; print("python-%d.%d" % sys.version_info[:2])')${1+-${1#--}}"
}

# python_environment [--all | --graphbolt | --moto]: an environment with what the tests need, made once for each version of
# Python and list of packages. Prints its folder, or fails and prints why.
python_environment() {
    local folder lists=(python/tests/requirements.txt) seconds=300
    folder=$(python_folder "$@") || { echo "no Python from 3.10 on with venv"; return 1; }
    case ${1-} in
        --all) lists+=(python/tests/requirements-all.txt); seconds=7200 ;;
        --graphbolt) lists=(python/tests/requirements-graphbolt.txt); seconds=7200 ;;
        --moto) lists=(tests/requirements-moto.txt) ;;
    esac
    if ! cmp -s <(cat "${lists[@]}") "$folder/requirements.txt"; then
        rm -f "$folder/requirements.txt"
        # Packages that are there already are not installed again.
        if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
            rm -rf "$folder"
            "$(find_python)" -m venv "$folder" >&2 || { echo "no environment in $folder"; return 1; }
        fi
        timeout "$seconds" "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
            "${lists[@]/#/--requirement=}" >&2 || { echo "pip cannot install ${lists[*]}"; return 1; }
        cat "${lists[@]}" >"$folder/requirements.txt"
    fi
    echo "$folder"
}

# The package as it is imported: never in the work tree. The whole workspace is built, as for all else,
# so that dependencies keep their features.
stage_python() {
    stage="$CARGO_TARGET_DIR/python"
    cargo build --locked --workspace
    rm -rf "$stage"
    mkdir -p "$stage"
    cp -r python/lodestore "$stage/"
    cp "$CARGO_TARGET_DIR/debug/lib_lodestore.so" "$stage/lodestore/_lodestore.abi3.so"
}

# python_tests [--all] [PYTEST ARGS]
python_tests() {
    local environment which=()
    if [ "${1-}" = --all ]; then
        which=(--all)
        shift
    fi
    environment=$(python_environment "${which[@]}") ||
        { skip "the Python package: $environment"; return; }
    stage_python
    local bin="$environment/bin"
    export PYTHONPATH="$stage" PYTHONDONTWRITEBYTECODE=1 LODESTORE_LODE="$CARGO_TARGET_DIR/debug/lode"
    (
        cd python
        "$bin/ruff" check --no-cache --quiet .
        "$bin/ruff" format --no-cache --check --quiet .
        # Not by `python -m`, which would import the sources of this folder.
        "$bin/stubtest" lodestore._lodestore --mypy-config-file pyproject.toml
        "$bin/pytest" "$@"
    )
    [ ${#which[@]} = 0 ] || graphbolt_tests
    unset PYTHONPATH PYTHONDONTWRITEBYTECODE LODESTORE_LODE
}

# The adapter over the real GraphBolt, and imports of DGL graphs, with the package that is staged. dgl
# needs an older torch and numpy than the other tests have.
graphbolt_tests() {
    local environment
    environment=$(python_environment --graphbolt) ||
        { skip "GraphBolt over the Python package: $environment"; return; }
    (
        cd python
        "$environment/bin/pytest" tests/test_graphbolt.py tests/test_inputs.py \
            tests/test_examples.py tests/third_party/graphbolt
    )
}

# With torch and PyG where `./x python --all` has installed them.
python_tests_here() {
    local folder
    if folder=$(python_folder --all) && [ -e "$folder/requirements.txt" ]; then
        python_tests --all
    else
        python_tests
        skip "PyG over the Python package: torch is not installed (./x python --all installs it, 5 GB)"
    fi
}

# try_wheel PYTHON WHEEL: installs a wheel in a bare environment, imports a graph by it, and reads rows.
try_wheel() {
    local bare
    bare=$(mktemp -d)
    "$1" -m venv "$bare/environment"
    "$bare/environment/bin/python" -m pip install --quiet --disable-pip-version-check "$2"
    (cd "$bare" && environment/bin/python -c '
import sys, lodestore, numpy as np
print("lodestore", lodestore.__version__, "on Python", sys.version.split()[0], "with numpy", np.__version__)
try:
    lodestore.open("/nowhere")
except lodestore.StoreError as error:
    print(error)
else:
    sys.exit("a graph was opened where there is none")
rows = np.arange(12, dtype=np.float32).reshape(4, 3)
edges = (np.array([0, 1, 2]), np.array([1, 2, 3]))
with lodestore.import_graph("g", edges=edges, tensors={"x": rows}) as graph:
    ids = graph.internal([3, 0])
    found, later = graph["x"][ids], graph.submit("x", ids).result()
    if not (np.array_equal(found, rows[[3, 0]]) and np.array_equal(later, found)):
        sys.exit(f"other rows: {found}, {later}")
')
    rm -r "$bare"
}

# A wheel by maturin, tried where numpy alone is installed, on every version of Python that is found.
wheel() {
    local environment out="$CARGO_TARGET_DIR/wheels"
    environment=$(python_environment) || { echo "no wheel: $environment" >&2; exit 1; }
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
    rm -rf "$out"
    "$environment/bin/maturin" build --locked --profile dev --manifest-path python/Cargo.toml \
        --interpreter "$environment/bin/python" --out "$out"
    # Of each version of Python that is here, once.
    local tried=() python
    while python=$(find_python "${tried[@]}") && [ -n "$python" ]; do
        tried+=("$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')")
        try_wheel "$python" "$out"/lodestore-*.whl
    done
    ls -l "$out"
}
