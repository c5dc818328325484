# Hosts built against the installed tree, which was moved after it was installed, and against the
# sources.

set(consumer ${CMAKE_CURRENT_SOURCE_DIR}/consumer)
set(consumer_build ${CMAKE_CURRENT_BINARY_DIR}/consumer)
set(prefix ${consumer_build}/prefix)

add_test(NAME install COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DPREFIX=${prefix}
    -P ${consumer}/install.cmake)
set_tests_properties(install PROPERTIES FIXTURES_SETUP installed)

function(consumer_test name)
    add_test(NAME consumer_${name} COMMAND ${CMAKE_CTEST_COMMAND}
        --build-and-test ${consumer} ${consumer_build}/${name}
        --build-generator ${CMAKE_GENERATOR} --build-noclean
        --build-options -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} ${ARGN}
        --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure)
    runs_on_backend(consumer_${name})
    # A build of the crate, if the sources are newer than the build of this tree.
    set_tests_properties(consumer_${name} PROPERTIES TIMEOUT 600)
endfunction()

consumer_test(find_package -DCMAKE_PREFIX_PATH=${prefix})
set_tests_properties(consumer_find_package PROPERTIES FIXTURES_REQUIRED installed)

set(share_cargo -DTCUDA_CARGO_TARGET_DIR=${TCUDA_CARGO_TARGET_DIR}
    -DTCUDA_PREBUILT_DIR=${TCUDA_PREBUILT_DIR} -DTCUDA_INSTALL=ON)
consumer_test(fetch_content -DFETCH=${PROJECT_SOURCE_DIR} ${share_cargo})
consumer_test(add_subdirectory -DSUBDIRECTORY=${PROJECT_SOURCE_DIR} ${share_cargo})

# The project that users copy.
if(CMAKE_CXX_COMPILER)
    add_test(NAME consumer_template COMMAND ${CMAKE_CTEST_COMMAND}
        --build-and-test ${PROJECT_SOURCE_DIR}/examples/template ${consumer_build}/template
        --build-generator ${CMAKE_GENERATOR} --build-options -DCMAKE_PREFIX_PATH=${prefix}
        --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure)
    set_tests_properties(consumer_template PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 120)
endif()

add_test(NAME consumer_pkg_config COMMAND sh ${consumer}/pkg_config.sh ${CMAKE_C_COMPILER}
    ${consumer}/host.c ${consumer_build}/pkg_config ${prefix}/${CMAKE_INSTALL_LIBDIR})
runs_on_backend(consumer_pkg_config)
set_tests_properties(consumer_pkg_config PROPERTIES FIXTURES_REQUIRED installed)

add_test(NAME consumer_wrong_prebuilt COMMAND ${CMAKE_COMMAND} -S ${PROJECT_SOURCE_DIR}
    -B ${consumer_build}/wrong_prebuilt -DTCUDA_PREBUILT_DIR=${consumer})
set_tests_properties(consumer_wrong_prebuilt PROPERTIES PASS_REGULAR_EXPRESSION
    "TCUDA_PREBUILT_DIR has no libtcuda.so:.*Configuring incomplete")

# docs/install.md, which builds a release from the sources.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT TCUDA_PREBUILT_DIR)
    add_test(NAME install_page COMMAND Python3::Interpreter
        ${CMAKE_CURRENT_SOURCE_DIR}/install_page.py ${PROJECT_SOURCE_DIR} ${consumer_build}/page
        ${prefix} ${CMAKE_COMMAND} ${TCUDA_CARGO_TARGET_DIR})
    runs_on_backend(install_page)
    set_tests_properties(install_page PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 600)
endif()
