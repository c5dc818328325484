"""Runs the tests of numba-cuda on the GPU in software, without a GPU.

usage: numba_suite.py [--wheel FILE] [--simulator FILE] [--only PART ...] [--managers NAME ...]
    [--jobs N] [--seconds N] [--test-seconds N]

The wheel is that of the package tcuda (scripts/tools/release.sh), whose libtcuda_sim.so is
libcuda.so.1 of the tests; they run with Numba's own memory manager, then with tcuda's. Numba and
all that it needs come from PyPI into target/suites. Without nvJitLink Numba links by the driver's
own linker, which keeps PTX, and skips what needs link-time optimisation. TCUDA_SIM has the options
of the machine. tests/suites/numba.txt lists the tests that fail, with reasons: a test fails that it
does not list, or one passes that it lists, and the exit status is 1.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

from pip_environment import ROOT, environment, install_wheel, wheel

KNOWN = ROOT / "tests/suites/numba.txt"
# The compilers are of CUDA 12.9, the simulated driver's version.
PACKAGES = ["numba-cuda==0.30.4", "numba==0.68.0", "numpy==2.4.6", "cuda-bindings==12.9.4",
            "cuda-core==1.2.2", "nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvcc-cu12==12.9.86",
            "nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-cccl-cu12==12.9.27", "cffi==2.1.1",
            "filecheck==1.0.6", "ml_dtypes==0.6.0", "psutil==7.2.2", "scipy==1.17.1",
            "pytest==9.2.0", "pytest-timeout==2.4.0", "pytest-xdist==3.8.0"]
# A section of the list, and the managers that it is for.
SECTIONS = {"left out": ("numba", "tcuda"), "not run": ("numba", "tcuda"),
            "fails": ("numba", "tcuda"), "fails with numba": ("numba",),
            "fails with tcuda": ("tcuda",)}


def known_failures():
    """The section and the reason of each test that is listed."""
    known, section = {}, ""
    for line in KNOWN.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, reason = line.split(maxsplit=1)
            known[name] = (section, reason)
    return known


def judge(manager, found, known, is_whole):
    """Prints the failures with their reasons; returns how many tests contradict the list."""
    expected = {name: it for name, it in known.items() if manager in SECTIONS[it[0]]}
    failed = {name: text for name, (outcome, text) in found.items() if outcome == "failed"}
    failed.update((name, "") for name in expected if known[name][0] == "not run")
    skipped = [name for name, (outcome, _) in found.items() if outcome == "skipped"]
    wrong = 0
    for name, text in sorted(failed.items()):
        section, reason = expected.get(name, ("NEW", next(iter(text.strip().splitlines()), "")))
        wrong += name not in expected
        print(f"{manager}: {section}: {name}: {reason}")
    for name in expected:
        if name in found and name not in failed or is_whole and name not in {**found, **failed}:
            wrong += 1
            print(f"{manager}: {found.get(name, ('gone',))[0]}, but listed: {name}")
    left_out = sum(expected.get(name, ("",))[0] == "left out" for name in failed)
    passed = sum(outcome == "passed" for outcome, _ in found.values())
    can_pass = passed + len(failed) - left_out
    print(f"{manager}: {len(found)} tests: {passed} passed, {len(failed) - left_out} failed, "
          f"{left_out} of what the simulator leaves out failed, {len(skipped)} skipped; "
          f"{100 * passed / max(1, can_pass):.1f} % of {can_pass}")
    print(f"figure: {manager}: passed = {passed}")
    return wrong + (not passed)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheel", type=pathlib.Path, default=wheel())
    parser.add_argument("--simulator", type=pathlib.Path, help="another libtcuda_sim.so")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names: cudadrv.")
    parser.add_argument("--managers", nargs="*", default=["numba", "tcuda"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=5400, help="for each manager")
    parser.add_argument("--test-seconds", type=int, default=300, help="for each test")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        sys.exit("NumPy 2.4 needs Python 3.11 or newer")
    folder = environment("numba-tests", PACKAGES)
    python = folder / "bin/python"
    install_wheel(python, options.wheel)
    driver, out = folder / "driver", folder / "out"
    driver.mkdir(exist_ok=True)
    library = driver / "libcuda.so.1"
    library.unlink(missing_ok=True)
    library.symlink_to(options.simulator.resolve() if options.simulator else
                       next(folder.glob("lib/python3*/site-packages/tcuda/lib/libtcuda_sim.so")))
    paths = [str(driver), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    settings = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(paths))
    settings.setdefault("TCUDA_SIM", "devices=2")
    report = out / "numba_tests.json"
    report.unlink(missing_ok=True)
    known, wrong = known_failures(), 0
    not_run = [name for name, (section, _) in known.items() if section == "not run"]
    subprocess.run([python, ROOT / "scripts/gpu/numba_tests.py", out, "--by-turns",
                    "--jobs", str(options.jobs), "--seconds", str(options.seconds),
                    "--test-seconds", str(options.test_seconds), "--managers", *options.managers,
                    "--only", *options.only, "--leave-out", *not_run],
                   env=settings, stdout=subprocess.DEVNULL, check=True)
    results = json.loads(report.read_text())
    print(f"numba-cuda {results['numba_cuda']} with TCUDA_SIM={settings['TCUDA_SIM']}")
    for manager in options.managers:
        wrong += judge(manager, results[manager], known, options.only == [""])
        print(f"{manager}: {results['seconds'][manager]:.0f} s with {options.jobs} processes")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
