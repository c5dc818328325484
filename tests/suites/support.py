"""What the programs share: the choice of one by its name, and the folders of CUDA's headers."""

import inspect
import pathlib
import sys


def functions_of(module, parameters):
    """The functions of a module, by name, that have these parameters and are no helpers."""
    return {name: value for name, value in module.items()
            if inspect.isfunction(value) and value.__module__ == module["__name__"] and
            list(inspect.signature(value).parameters) == parameters and
            name not in module.get("HELPERS", ())}


def chosen(functions, arguments):
    """The function that the command line names, or none after it listed them."""
    if arguments == ["--list"]:
        print(*functions, sep="\n")
        return None
    if not arguments or arguments[0] not in functions:
        sys.exit(f"usage: {sys.argv[0]} --list, or one of: {' '.join(functions)}")
    return functions[arguments[0]]


def main(module):
    """Runs a program of a module."""
    program = chosen(functions_of(module, []), sys.argv[1:])
    if program:
        program()


def main_of_races(module):
    """Runs a program of a module, with the wait ("right") or without it."""
    program = chosen(functions_of(module, ["right"]), sys.argv[1:])
    if program:
        program(sys.argv[2] == "right")


def include_folders():
    """The headers of the packages nvidia-cuda-runtime-cu12 and nvidia-cuda-cccl-cu12."""
    import nvidia

    return [str(path) for root in nvidia.__path__
            for path in sorted(pathlib.Path(root).glob("cuda_*/include"))]
