"""Runs CuPy's own tests of memory, streams, events and arrays with its allocator and with tcuda's.

usage: cupy_tests.py CHECKOUT OUT [--only PART ...] [--jobs N] [--seconds N] [--by-turns]

CHECKOUT is a checkout of CuPy, or its unpacked source package; nothing of it is copied here. Both
allocators run at the same time on one GPU, or one after the other: two tests take 70 % of its
memory. Needs the packages tcuda, pytest and pytest-xdist; OUT gets cupy_tests.json and pytest's
output. Exit status 77: CuPy sees no GPU.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import sys
import tempfile

from numba_tests import compare, pytest_command, run

TESTS = ["cuda_tests/test_memory.py", "cuda_tests/test_stream.py", "cuda_tests/test_graph.py",
         "cuda_tests/test_pinned_memory.py", "cuda_tests/test_memory_hook.py",
         "cuda_tests/memory_hooks_tests", "cuda_tests/test_device.py", "cuda_tests/test_runtime.py",
         "core_tests/test_ndarray.py", "core_tests/test_ndarray_copy_and_view.py",
         "core_tests/test_dlpack.py", "core_tests/test_internal.py",
         "core_tests/test_ndarray_owndata.py", "core_tests/test_ndarray_cuda_array_interface.py"]
# Before each test, because tests end by choosing CuPy's own pool.
PLUGIN = """
import pytest
import tcuda.cupy

@pytest.fixture(autouse=True)
def tcuda_memory():
    tcuda.cupy.enable(pinned=True)

def pytest_sessionfinish():
    allocations = tcuda.memory_stats().get("allocation.all.allocated", 0)
    with open({counts!r}, "a") as file:
        print(allocations, file=file)
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names: test_memory")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2 - 1))
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--by-turns", action="store_true", help="one allocator after the other")
    options = parser.parse_args()
    try:
        import cupy
        is_available = cupy.cuda.is_available()
    except ImportError:
        is_available = False
    if not is_available:
        print("skipped: CuPy sees no GPU")
        sys.exit(77)
    tests = (options.checkout / "tests").resolve()
    names = [str(tests / "cupy_tests" / name) for name in TESTS
             if any(part in name for part in options.only)]
    names = [name for name in names if os.path.exists(name)]
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        counts = pathlib.Path(folder) / "counts"
        (pathlib.Path(folder) / "tcuda_plugin.py").write_text(PLUGIN.format(counts=str(counts)))
        paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))

        def start(allocator):
            environment = dict(os.environ, PYTHONPATH=paths, PYTHONDONTWRITEBYTECODE="1")
            plugin = ["-p", "tcuda_plugin"] if allocator == "tcuda" else []
            return run(pytest_command(options.jobs, *plugin, *names), tests, environment,
                       options.seconds, out / f"cupy_tests_{allocator}")

        with concurrent.futures.ThreadPoolExecutor(1 if options.by_turns else 2) as threads:
            own, ours = threads.map(start, ("cupy", "tcuda"))
        allocations = sum(map(int, counts.read_text().split())) if counts.exists() else 0
    compare("CuPy's allocator", own, ours)
    print(f"CuPy {cupy.__version__}; {allocations} allocations of tcuda")
    text = json.dumps({"cupy_version": cupy.__version__, "cupy": own, "tcuda": ours,
                       "allocations": allocations}, indent=1)
    (out / "cupy_tests.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
