"""The recipe for Spack 1.0 or newer: builds the sources of the repository that it lies in.

spack repo add packaging/spack/spack_repo/tcuda
spack install tcuda [prebuilt=FOLDER]
spack test run tcuda

FOLDER has libtcuda.so, libtcuda.a and libtcuda_sim.so; without it, cargo builds them. The hash of
the package does not cover the sources: after a change, spack install --overwrite tcuda.
"""

import os
import re

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 6))


def cargo_version():
    with open(os.path.join(ROOT, "Cargo.toml")) as cargo:
        return re.search(r'^version = "(.*)"', cargo.read(), re.MULTILINE)[1]


class Tcuda(CMakePackage):
    """All of torch.cuda as one small C library: devices, streams, events, the caching allocator,
    graphs, random numbers and collectives, without PyTorch and without a CUDA toolkit."""

    license("Apache-2.0")
    # Nothing is fetched: CMake reads the sources where they are.
    has_code = False
    root_cmakelists_dir = ROOT

    version(cargo_version())

    variant(
        "prebuilt",
        default="none",
        values=lambda value: value == "none" or os.path.isabs(value),
        description="Folder with libraries that were built elsewhere",
    )

    depends_on("c", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("rust@1.95:", type="build", when="prebuilt=none")
    # Only the test compiles C++.
    depends_on("cxx", type="build")

    requires("platform=linux")
    requires("target=x86_64:", "target=aarch64:", policy="one_of")

    sanity_check_is_file = [
        os.path.join("include", "tcuda.h"),
        os.path.join("lib", "cmake", "tcuda", "tcuda-config.cmake"),
        os.path.join("lib", "libtcuda.so"),
        os.path.join("lib", "libtcuda_sim.so"),
        os.path.join("lib", "pkgconfig", "tcuda.pc"),
        os.path.join("share", "doc", "tcuda", "LICENSE"),
    ]

    def cmake_args(self):
        prebuilt = self.spec.variants["prebuilt"].value
        return [
            self.define("CMAKE_INSTALL_LIBDIR", "lib"),
            self.define("TCUDA_BUILD_EXAMPLES", False),
            self.define("TCUDA_BUILD_TESTS", False),
            self.define("TCUDA_PREBUILT_DIR", "" if prebuilt == "none" else prebuilt),
        ]

    @run_after("install")
    def keep_template(self):
        template = join_path(ROOT, "examples", "template")
        install_tree(template, join_path(install_test_root(self), "template"))

    def test_template(self):
        """a project that uses the package runs on the simulated GPU"""
        source = self.test_suite.current_test_cache_dir.template
        build = "build"
        cmake = Executable(self.spec["cmake"].prefix.bin.cmake)
        cmake("-S", source, "-B", build, self.define("CMAKE_PREFIX_PATH", self.prefix))
        cmake("--build", build)
        Executable(self.spec["cmake"].prefix.bin.ctest)("--test-dir", build, "--output-on-failure")
