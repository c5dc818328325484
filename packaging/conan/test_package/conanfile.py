"""Builds examples/template with the package, and runs it on the simulated GPU."""

import os

from conan import ConanFile
from conan.tools.cmake import CMake, cmake_layout


class Test(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain"
    template = os.path.join("..", "..", "..", "examples", "template")

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=self.template)
        cmake.build()

    def test(self):
        CMake(self).test()
