# Headers, libraries, and packages for CMake and pkg-config. Every path in them is relative to the
# package file: the tree can be moved.

include(CMakePackageConfigHelpers)

# cargo runs before anything is installed, also where no test or example needs the library.
add_custom_target(tcuda_all ALL)
add_dependencies(tcuda_all tcuda_cargo)

install(FILES ${PROJECT_SOURCE_DIR}/include/tcuda.h TYPE INCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/include/tcuda.hpp TYPE INCLUDE OPTIONAL)
# For generators of bindings: docs/bindings.md.
install(FILES ${PROJECT_SOURCE_DIR}/include/tcuda_cdef.h TYPE INCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/include/api.json ${PROJECT_SOURCE_DIR}/data/api.schema.json
    DESTINATION ${CMAKE_INSTALL_DATADIR}/tcuda)
# The pages, which messages name, and the programs in other languages.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples
    DESTINATION ${CMAKE_INSTALL_DOCDIR}
    OPTIONAL PATTERN benchmarks EXCLUDE)
# Adapters for other libraries.
install(FILES ${PROJECT_SOURCE_DIR}/include/tcuda_mr.hpp
    ${PROJECT_SOURCE_DIR}/include/tcuda_dlpack.hpp
    ${PROJECT_SOURCE_DIR}/include/tcuda_ort.h
    ${PROJECT_SOURCE_DIR}/include/tcuda_ggml.hpp
    ${PROJECT_SOURCE_DIR}/include/tcuda_nccl.hpp TYPE INCLUDE)
install(PROGRAMS ${tcuda_library_dir}/${tcuda_file} ${tcuda_library_dir}/libtcuda_sim.so TYPE LIB)
install(FILES ${tcuda_library_dir}/${tcuda_soname} ${tcuda_library_dir}/libtcuda.so
    ${tcuda_library_dir}/libtcuda.a TYPE LIB)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/data/torch_cuda.txt TYPE DOC)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tcuda)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tcuda-config.cmake.in
    ${PROJECT_BINARY_DIR}/tcuda-config.cmake
    INSTALL_DESTINATION ${package_dir}
    PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tcuda-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tcuda-config.cmake
    ${PROJECT_BINARY_DIR}/tcuda-config-version.cmake DESTINATION ${package_dir})

# From the .pc file up to the prefix; absolute directories stay as they are.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
    BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE pc_to_prefix)
foreach(name IN ITEMS tcuda tcuda-static)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
