# An overlay port that builds the sources of the repository that it lies in:
#   vcpkg install tcuda --overlay-ports=packaging/vcpkg/ports --binarysource=clear
# (The cache of packages does not notice that the sources change.)
# TCUDA_PREBUILT_DIR, a variable of the environment: a folder with libtcuda.so, libtcuda.a and
# libtcuda_sim.so; without it, cargo builds them.

# The simulator is a library that tcuda opens from its own folder.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
# The interface is C, so that one build serves both configurations.
set(VCPKG_BUILD_TYPE release)
set(VCPKG_POLICY_MISMATCHED_NUMBER_OF_BINARIES enabled)
# The libraries need no path.
set(VCPKG_FIXUP_ELF_RPATH OFF)

cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../../..")

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DTCUDA_BUILD_TESTS=OFF
        -DTCUDA_BUILD_EXAMPLES=OFF
        "-DTCUDA_PREBUILT_DIR=$ENV{TCUDA_PREBUILT_DIR}"
)
vcpkg_cmake_install()
file(REMOVE "${CURRENT_PACKAGES_DIR}/lib/libtcuda.a"
    "${CURRENT_PACKAGES_DIR}/lib/pkgconfig/tcuda-static.pc")
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tcuda)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
