#!/usr/bin/env bash
# usage: gauntlet.sh [--quick] [--only NAME[,NAME...]] [--list]: every check in full; --quick: a
# share of each. A failure does not stop it. How each step went, how long it took and its key
# figures are in build/gauntlet/summary.txt and summary.json, what it printed in
# build/gauntlet/NAME.log.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"

only='' quick='' list=''
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --list) list=1 ;;
    --only) only=,${2:?--only needs the names of steps}, && shift ;;
    *) sed -n '2,5s/^# //p' "$0" && exit 2 ;;
    esac
    shift
done
[ -n "$list" ] || get_nvrtc
out=build/gauntlet
mkdir -p "$out"
text=() json=() failures=0

# full A B: A in the whole gauntlet, B in a quick one.
full() { if [ -z "$quick" ]; then echo "$1"; else echo "$2"; fi; }

# step NAME COMMAND...: runs it; its output goes to build/gauntlet/NAME.log.
step() {
    local name=$1 start=$SECONDS outcome=passed
    shift
    [ -z "$only" ] || [[ $only == *",$name,"* ]] || return 0
    [ -z "$list" ] || { printf '%-14s %s\n' "$name" "$*"; return 0; }
    echo "==== $name: $*"
    if ! ("$@") >"$out/$name.log" 2>&1; then
        outcome=FAILED
        failures=$((failures + 1))
        tail -20 "$out/$name.log"
    fi
    local arguments=("$name" "$outcome" $((SECONDS - start)) "$out/$name.log")
    text+=("$(python3 scripts/ci/figures.py "${arguments[@]}")")
    json+=("$(python3 scripts/ci/figures.py "${arguments[@]}" --json)")
    echo "${text[-1]}"
}

suite() { configure_and_build "$1" && "$ctest" --preset "$1" --parallel "$(jobs)"; }

races() {
    configure_and_build release && python3 scripts/ci/races.py build/release/c_tests \
        --racy 1000 --twin "$(full 10000 300)" --workload "$(full 1000 30)" \
        --json target/races.json &&
        python3 scripts/ci/races.py build/release/c_tests --sanitizer
}

model() { if [ -z "$quick" ]; then scripts/ci/model.sh; else cargo test --locked --test model; fi; }

# Its own directory: with the feature on, everything would be built twice in the common one.
faults() {
    if [ -z "$quick" ]; then
        scripts/ci/rust_faults.sh
    else
        CARGO_TARGET_DIR=$root/target/faults cargo test --locked --features host_faults \
            --test faults
    fi
}

c_faults() {
    local share=()
    [ -n "$quick" ] || share=(--all --seconds 600)
    configure_and_build dev &&
        python3 scripts/ci/fault_loop.py build/dev/c_tests "${share[@]}" \
            --json target/c_faults.json &&
        scheduled_faults build/dev/c_tests
}

# The same on late machines. Seeds 2 and 20 do not fill fresh memory, which takes minutes where a
# program allocates all of it.
scheduled_faults() {
    local schedule
    for schedule in threads adversarial:2 adversarial:20; do
        python3 scripts/ci/fault_loop.py "$1" --schedule "$schedule" --seconds "$(full 300 30)" ||
            return
    done
}

# Leaks of host memory on the way of each fault: the leak checker looks at every process.
sanitized_faults() {
    local share=(--most 100)
    [ -n "$quick" ] || share=(--all --seconds 240)
    configure_and_build asan || return
    TCUDA_TEST_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=intercept_tls_get_addr=0 \
        LSAN_OPTIONS=suppressions=$root/c_tests/lsan.supp:print_suppressions=0 \
        python3 scripts/ci/fault_loop.py build/asan/c_tests "${share[@]}" --no-libc
}

# Each kind of object created and destroyed so often, on the simulated machine. On a late machine
# growth ends after more rounds, when as many operations are delayed as can be.
soak() {
    local build=$root/build/release schedule rounds status=0
    configure_and_build release || return
    for schedule in immediate threads adversarial:1; do
        [ "$schedule" = immediate ] && rounds=$(full 100000 2000) || rounds=$(full 400000 100000)
        env TCUDA_BACKEND=sim TCUDA_SIM="schedule=$schedule" \
            TCUDA_KERNEL_CACHE_PATH="$build/kernels" \
            TCUDA_NCCL_PATH="$build/c_tests/libfake_nccl.so" \
            TCUDA_CUBLAS_PATH="$build/c_tests/libcublas_stand_in.so" \
            "$build/c_tests/soak" --rounds "$rounds" \
            --json "$root/target/soak_${schedule%%:*}.json" || status=1
    done
    return "$status"
}

# The Conan recipe, and a project that uses the package.
conan() {
    local folder=$tools/conan-2.34.0
    configure_and_build release || return
    [ -e "$folder" ] || python3 scripts/tools/pip_install.py conan==2.34.0 "$folder" || return
    env PYTHONPATH="$folder" CONAN_HOME="$root/target/conan" \
        PATH="$(dirname "$(command -v "$cmake")"):$PATH" \
        sh -euc 'python3 "$1/bin/conan" profile detect --force
            python3 "$1/bin/conan" create packaging/conan -s build_type=Release \
                -c user.tcuda:prebuilt_dir="$2"' _ "$folder" "$root/build/release/lib"
}

# The conda recipe, and a project that uses the package.
conda() {
    local folder=$tools/py-rattler-build-0.73.0
    configure_and_build release || return
    [ -e "$folder" ] ||
        python3 scripts/tools/pip_install.py py-rattler-build==0.73.0 "$folder" || return
    rm -rf target/conda
    env PYTHONPATH="$folder" TCUDA_PREBUILT_DIR="$root/build/release/lib" \
        PATH="$(dirname "$(command -v "$cmake")"):$PATH" python3 scripts/ci/conda.py target/conda
}

# Random calls of all functions, on one thread, on several, and beside shutdowns and forks.
random_caller() {
    TCUDA_FUZZ_SECONDS=$(full 600 20) CARGO_TARGET_DIR=$root/target/faults cargo test --locked \
        --manifest-path fuzz/Cargo.toml --test corpus a_random_caller -- --nocapture
}

# What operations cost, where nothing but the code decides it.
instructions() {
    configure_and_build release -DTCUDA_BUILD_BENCHES=ON &&
        python3 benches/instructions.py build/release/benches/instructions --check
}

# Objects that threads destroy beside shutdowns and waits: no crash, no shutdown without end, no
# growth.
reclamation() {
    configure_and_build release &&
        TCUDA_BACKEND=sim build/release/c_tests/reclamation_shared --seconds "$(full 600 10)"
}

step clippy scripts/ci/lint.sh
step deny scripts/ci/deny.sh
step abi scripts/ci/abi.sh
step prototypes scripts/ci/prototypes.py
step tests cargo test --locked --no-fail-fast
step properties scripts/ci/properties.sh "$(full 300 5)"
step contract cargo test --locked --test contract
step model model
step sanitizer env "$(full TCUDA_GAUNTLET=1 TCUDA_QUICK=1)" \
    cargo test --locked --test sanitizer -- --nocapture
step differential scripts/ci/differential.sh --fetch --traces --operations "$(full 1000000 20000)"
step differential-tight scripts/ci/differential.sh --tight --operations "$(full 1000000 20000)"
differential_segments() {
    local operations
    operations=$(full 1000000 20000)
    scripts/ci/differential.sh --segments --operations "$operations" &&
        scripts/ci/differential.sh --segments --tight --operations "$operations" \
            --options max_split_size_mb:40,max_non_split_rounding_mb:30,large_segment_size_mb:26 &&
        scripts/ci/differential.sh --segments --tight --operations "$operations" --fraction 0.8 \
            --options \
            garbage_collection_threshold:0.5,max_split_size_mb:30,roundup_power2_divisions:8
}
step differential-segments differential_segments
step faults faults
step fuzz scripts/ci/fuzz.sh "$(full 60 5)"
step random-caller random_caller
step models scripts/ci/models.sh "$(full --full --quick)"
step c-debug suite dev
step c-faults c_faults
step c-asan suite asan
step c-faults-asan sanitized_faults
step c-release suite release
released() {
    scripts/tools/release.sh || return
    ! command -v lintian >/dev/null ||
        lintian --allow-root --fail-on error target/release-[0-9]*/*.deb
}
step release released
# The wheels of the release.
audited() {
    local folder=$tools/auditwheel-6.8.2
    [ -e "$folder" ] || python3 scripts/tools/pip_install.py auditwheel==6.8.2 "$folder" || return
    PYTHONPATH=$folder python3 scripts/ci/auditwheel.py 2.17 \
        target/release-[0-9]*/tcuda-*_{x86_64,aarch64}.whl
}
step auditwheel audited
step wheels scripts/ci/wheels.sh
# Numba's own tests on the simulated machine, with the wheel of the release.
numba() {
    local share=()
    [ -z "$quick" ] || share=(--only cudadrv. nrt.)
    python3 scripts/ci/numba_suite.py "${share[@]}"
}
step numba numba
# The backend of tcuda.torch with each PyTorch: compiled; in full also run on the simulated machine,
# with 4 GB of libraries of PyTorch.
torch_versions() {
    local share=()
    if [ -z "$quick" ]; then
        configure_and_build release || return
        share=(--run "$root/build/release/lib/libtcuda.so")
    fi
    scripts/ci/torch_headers.py "${share[@]}"
}
step torch_versions torch_versions
step conan conan
step conda conda
step reproducible scripts/ci/reproducible.sh
step aarch64 scripts/ci/aarch64.sh
# The tests of the crate cudarc on the simulated driver.
cudarc() {
    configure_and_build release || return
    local schedule
    for schedule in threads $(full adversarial:1 ''); do
        scripts/ci/cudarc_tests.py --schedule "$schedule" build/release/lib/libtcuda_sim.so ||
            return
    done
}
step cudarc cudarc
step soak soak
step instructions instructions
step races races
step reclamation reclamation
# Python programs of others on the simulated machine.
python_programs() {
    configure_and_build release &&
        scripts/ci/cuda_python.py "$root/build/release/lib/libtcuda_sim.so"
}
step python-programs python_programs
# Missing waits of Python programs.
python_races() {
    configure_and_build release &&
        scripts/ci/python_races.py --right "$(full 100 3)" "$root/build/release/lib/libtcuda_sim.so"
}
step python-races python_races
step valgrind scripts/ci/valgrind.sh "$(full --all --share)"
step rust-asan scripts/ci/sanitize_rust.sh
step branches scripts/ci/branches.sh

[ -z "$list" ] || exit 0
printf '%s\n' "${text[@]}" | tee "$out/summary.txt"
(IFS=,; printf '[%s]\n' "${json[*]}") >"$out/summary.json"
[ "$failures" -eq 0 ] || { echo "$failures step(s) failed"; exit 1; }
