"""The Conan 2 recipe: builds the sources of this repository.

conan create packaging/conan [-o tcuda/*:shared=False] [-c user.tcuda:prebuilt_dir=FOLDER]
prebuilt_dir has libtcuda.so, libtcuda.a and libtcuda_sim.so; without it, cargo builds them.
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Tcuda(ConanFile):
    name = "tcuda"
    description = "All of torch.cuda as one small C library"
    license = "Apache-2.0"
    topics = ("cuda", "gpu", "allocator")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False]}
    default_options = {"shared": True}
    # The interface is C; tcuda.hpp is compiled by its users.
    languages = "C"

    @property
    def root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        cargo = load(self, os.path.join(self.root, "Cargo.toml"))
        self.version = re.search(r'^version = "(.*)"', cargo, re.MULTILINE)[1]

    def export_sources(self):
        for pattern in ("Cargo.*", "CMakeLists.txt", "LICENSE", "build.rs", "abi/*", "benches/*",
                "cbindgen.toml", "cmake/*", "data/*", "include/*", "kernels/*", "sim/*", "src/*",
                "tests/*"):
            copy(self, pattern, self.root, self.export_sources_folder)

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("tcuda is for Linux on x86_64 and armv8")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["TCUDA_BUILD_TESTS"] = False
        toolchain.cache_variables["TCUDA_BUILD_EXAMPLES"] = False
        prebuilt = self.conf.get("user.tcuda:prebuilt_dir")
        if prebuilt:
            toolchain.cache_variables["TCUDA_PREBUILT_DIR"] = prebuilt
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # The package has its own CMake files, with both libraries and the simulator.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "tcuda")]
        self.cpp_info.libs = ["tcuda"]
