include(CMakeFindDependencyMacro)
find_dependency(tcuda 0.1 CONFIG)
include(${CMAKE_CURRENT_LIST_DIR}/engine-targets.cmake)
