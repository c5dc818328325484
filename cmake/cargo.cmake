# The library as cargo builds it, and the targets for it.

if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(profile dev)
    set(cargo_output ${TCUDA_CARGO_TARGET_DIR}/debug)
else()
    set(profile release)
    set(cargo_output ${TCUDA_CARGO_TARGET_DIR}/release)
endif()

# With a target of its own (CARGO_BUILD_TARGET), cargo puts what it builds one folder deeper.
if(TCUDA_CARGO_OUTPUT)
    set(cargo_output ${TCUDA_CARGO_OUTPUT})
endif()

if(TCUDA_PREBUILT_DIR)
    foreach(file IN ITEMS libtcuda.so libtcuda.a libtcuda_sim.so)
        if(NOT EXISTS ${TCUDA_PREBUILT_DIR}/${file})
            message(FATAL_ERROR "TCUDA_PREBUILT_DIR has no ${file}: ${TCUDA_PREBUILT_DIR}. "
                "Set it to a folder with libtcuda.so, libtcuda.a and libtcuda_sim.so.")
        endif()
    endforeach()
    set(cargo_output ${TCUDA_PREBUILT_DIR})
    set(cargo_build ${CMAKE_COMMAND} -E true)
    set(comment "Taking libtcuda from ${TCUDA_PREBUILT_DIR}")
else()
    find_program(TCUDA_CARGO cargo HINTS $ENV{HOME}/.cargo/bin)
    find_program(TCUDA_RUSTC rustc HINTS $ENV{HOME}/.cargo/bin)
    if(NOT TCUDA_CARGO OR NOT TCUDA_RUSTC)
        message(FATAL_ERROR "There is no cargo or no rustc. Install Rust 1.95 or newer "
            "(https://rustup.rs), or set TCUDA_PREBUILT_DIR to the lib folder of a release.")
    endif()
    # CUDARC_CUDA_VERSION would override cudarc's features.
    set(cargo_build ${CMAKE_COMMAND} -E env --unset=CUDARC_CUDA_VERSION
        ${TCUDA_CARGO} build --locked --lib --profile ${profile}
        --manifest-path ${PROJECT_SOURCE_DIR}/Cargo.toml --target-dir ${TCUDA_CARGO_TARGET_DIR})
    set(comment "Building libtcuda with cargo (${profile})")
endif()

# Named as they are installed: the file, the name in it (SONAME), the name to link with.
set(tcuda_library_dir ${PROJECT_BINARY_DIR}/lib)
set(tcuda_file libtcuda.so.${PROJECT_VERSION})
set(tcuda_soname libtcuda.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# Bitcode for link-time optimisation is two thirds of the archive; only rustc reads it.
set(archive ${cargo_output}/libtcuda.a)
set(without_bitcode ${CMAKE_COMMAND} -E true)
if(profile STREQUAL "release" AND CMAKE_OBJCOPY AND NOT TCUDA_PREBUILT_DIR)
    set(archive ${PROJECT_BINARY_DIR}/libtcuda.a)
    set(without_bitcode ${CMAKE_OBJCOPY} --remove-section=.llvmbc --remove-section=.llvmcmd
        ${cargo_output}/libtcuda.a ${archive})
endif()

# cargo decides whether there is anything to do; copy_if_different then leaves file times alone, so
# that nothing is linked anew in vain.
add_custom_target(tcuda_cargo
    COMMAND ${cargo_build}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${tcuda_library_dir}
    COMMAND ${CMAKE_COMMAND} -E copy_if_different
        ${cargo_output}/libtcuda.so ${tcuda_library_dir}/${tcuda_file}
    COMMAND ${without_bitcode}
    COMMAND ${CMAKE_COMMAND} -E copy_if_different ${archive} ${tcuda_library_dir}/libtcuda.a
    COMMAND ${CMAKE_COMMAND} -E copy_if_different
        ${cargo_output}/libtcuda_sim.so ${tcuda_library_dir}/libtcuda_sim.so
    COMMAND ${CMAKE_COMMAND} -E create_symlink ${tcuda_file} ${tcuda_library_dir}/${tcuda_soname}
    COMMAND ${CMAKE_COMMAND} -E create_symlink ${tcuda_soname} ${tcuda_library_dir}/libtcuda.so
    BYPRODUCTS ${tcuda_library_dir}/${tcuda_file} ${tcuda_library_dir}/libtcuda.a
        ${tcuda_library_dir}/libtcuda_sim.so
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMENT ${comment}
    USES_TERMINAL VERBATIM)

# What a static library of this rustc needs besides: asked, so that it cannot go stale.
if(TCUDA_PREBUILT_DIR)
    set(tcuda_native_libs "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc")
else()
    execute_process(
        COMMAND ${TCUDA_RUSTC} --crate-type staticlib --crate-name probe --print native-static-libs
            -o ${PROJECT_BINARY_DIR}/probe.a ${PROJECT_SOURCE_DIR}/cmake/probe.rs
        OUTPUT_VARIABLE native ERROR_VARIABLE native COMMAND_ERROR_IS_FATAL ANY)
    file(REMOVE ${PROJECT_BINARY_DIR}/probe.a)
    string(REGEX MATCH "native-static-libs: ([^\n]*)" native "${native}")
    string(STRIP "${CMAKE_MATCH_1}" tcuda_native_libs)
endif()
string(REPLACE " " ";" native "${tcuda_native_libs}")

# The files need not exist yet: tcuda_cargo makes them before anything is linked. Imported targets
# have the names that find_package gives them, because install(EXPORT) of a project that links them
# writes these names.
add_library(tcuda::tcuda SHARED IMPORTED GLOBAL)
set_target_properties(tcuda::tcuda PROPERTIES
    IMPORTED_LOCATION ${tcuda_library_dir}/${tcuda_file}
    IMPORTED_SONAME ${tcuda_soname}
    INTERFACE_INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/include)
add_library(tcuda::static STATIC IMPORTED GLOBAL)
set_target_properties(tcuda::static PROPERTIES
    IMPORTED_LOCATION ${tcuda_library_dir}/libtcuda.a
    INTERFACE_COMPILE_DEFINITIONS TCUDA_STATIC
    INTERFACE_LINK_LIBRARIES "${native}"
    INTERFACE_LINK_OPTIONS LINKER:--gc-sections
    INTERFACE_INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/include)
# The simulator, which tcuda opens from its own folder, or from that of an executable that tcuda is
# linked into: $<TARGET_FILE:tcuda::sim> is what such a program puts beside it.
add_library(tcuda::sim MODULE IMPORTED GLOBAL)
set_target_properties(tcuda::sim PROPERTIES
    IMPORTED_LOCATION ${tcuda_library_dir}/libtcuda_sim.so)
foreach(target IN ITEMS tcuda static sim)
    add_dependencies(tcuda::${target} tcuda_cargo)
endforeach()
