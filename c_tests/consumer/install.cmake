# Installs BUILD and moves the tree to PREFIX: nothing in it may know where it was.
file(REMOVE_RECURSE ${PREFIX} ${PREFIX}.staged)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX}.staged
    COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${PREFIX}.staged ${PREFIX})
