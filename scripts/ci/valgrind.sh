#!/usr/bin/env bash
# usage: valgrind.sh [--share | --all | PROGRAM...]: the C programs of build/dev under memcheck, on
# small simulated devices, whose addresses valgrind reserves in a second. What is read before
# it is written, touched after it is freed, or lost, ends a program. Children of forks are followed.
set -euo pipefail
source "$(dirname "$0")/../tools/tools.sh"
get_nvrtc
command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed"; exit 0; }
configure_and_build dev >build/valgrind.log 2>&1 || { tail -20 build/valgrind.log; exit 1; }

programs=build/dev/c_tests
share=(library_shared stream_shared event_shared memory_shared host_shared device_shared
    failures_shared)
case ${1:---share} in
--share) names=("${share[@]}") ;;
--all)
    # All but the races, which are about bytes, what opens the library by hand, teardown, whose
    # hundreds of processes have alarms, as those of communicator_failures and process, limits and
    # denied, which would leave valgrind without memory, ended, history_frames and reclamation,
    # which measure it, and forks: what only the threads of the parent refer to is lost in its
    # children. kernel_headers starts itself by /proc/self/exe, which is valgrind. The timer of
    # file_failures leaves no time to it. ipc maps the memory of a device often.
    mapfile -t names < <(cd "$programs" && find . -maxdepth 1 -type f -perm -u+x -name '*_shared' \
        ! -name 'driver_*' ! -name 'teardown*' ! -name 'limits*' ! -name 'denied*' \
        ! -name 'communicator_failures*' ! -name 'ended*' ! -name 'forks*' \
        ! -name 'reclamation*' ! -name 'process*' ! -name 'history_frames*' ! -name 'ipc_shared' \
        ! -name 'kernel_headers*' ! -name 'file_failures*' -printf '%f\n' | sort)
    names+=(driver_gone_shared driver_poor_shared library_static memory_static)
    ;;
*) names=("$@") ;;
esac

# What the programs get from ctest: stand-ins for libraries, and a driver.
mkdir -p build/valgrind
"$ctest" --preset dev --show-only=json-v1 >build/valgrind/tests.json
environment_of() {
    python3 - "$1" <<'END'
import json, sys
for test in json.load(open("build/valgrind/tests.json"))["tests"]:
    if test["name"] == sys.argv[1]:
        for row in test.get("properties", []):
            if row["name"] == "ENVIRONMENT":
                print("\n".join(row["value"]))
END
}

# one NAME: runs it; what it printed is shown if it failed.
one() {
    local log=build/valgrind/$1.log status=0 own machine=memory=1GiB,devices=1
    case $1 in
    settings* | oom*) machine=memory=4GiB,devices=1 ;;
    simulator_driver*) machine=memory=1GiB,devices=3 ;;
    esac
    mapfile -t own < <(environment_of "$1")
    timeout 900 env TCUDA_BACKEND=sim "${own[@]}" TCUDA_SIM=$machine \
        valgrind --quiet --error-exitcode=9 --leak-check=full \
        --errors-for-leak-kinds=definite --fair-sched=yes --suppressions=c_tests/valgrind.supp \
        "$programs/$1" >"$log" 2>&1 || status=$?
    case $status in
    0) echo "passed $1" && return ;;
    77) echo "skipped $1" && return ;;
    124) echo "FAILED $1: 900 s were not enough" ;;
    *) echo "FAILED $1, exit status $status: see $log" ;;
    esac
    grep -v 'possibly lost' "$log" | head -40
    return 1
}
export -f one environment_of
export programs
printf '%s\n' "${names[@]}" | xargs -P "$(jobs)" -I{} bash -c 'one {}' || failed=1
echo "figure: programs under valgrind = ${#names[@]}"
exit "${failed:-0}"
