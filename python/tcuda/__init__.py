"""torch.cuda without torch: `import tcuda as cuda` in place of `from torch import cuda`.

The names and what they do are those of torch.cuda; (+) marks what it does not have. A device is an
ordinal, "cuda:1", a `device` or a torch.device; None is this thread's current one.
"""

import atexit
from typing import Any

from . import (
    _core,
    _cudart,
    arrays,
    comm,
    devices,
    errors,
    gds,
    graph_annotations,
    graphs,
    green_contexts,
    ipc,
    jiterator,
    memory,
    nccl,
    nvtx,
    profiler,
    random,
    sanitizer,
    streams,
    telemetry,
)
from ._cudart import *  # noqa: F403
from .arrays import *  # noqa: F403
from .devices import *  # noqa: F403
from .errors import *  # noqa: F403
from .graphs import *  # noqa: F403
from .green_contexts import GreenContext
from .memory import *  # noqa: F403
from .random import *  # noqa: F403
from .streams import *  # noqa: F403
from .telemetry import *  # noqa: F403

__version__ = "{}.{}.{}".format(
    _core.version() // 1_000_000, _core.version() // 1000 % 1000, _core.version() % 1000)

__all__ = [
    "GreenContext", "comm", "default_generators", "gds", "graph_annotations", "graphs",
    "green_contexts", "ipc", "jiterator", "memory", "nccl", "nvtx", "profiler", "random",
    "sanitizer", "streams",
]
__all__ += _cudart.__all__
__all__ += arrays.__all__
__all__ += devices.__all__
__all__ += errors.__all__
__all__ += graphs.__all__
__all__ += memory.__all__
__all__ += random.__all__
__all__ += streams.__all__
__all__ += telemetry.__all__

_sanitizer = sanitizer  # its name in torch.cuda

default_generators: tuple[Generator, ...]  # noqa: F405

# After this no callback waits for the interpreter, which ends.
atexit.register(_core.close_callbacks)


def __getattr__(name: str) -> Any:
    """`default_generators`, which exist once there are devices."""
    if name == "default_generators":
        return random._default_generators()
    raise AttributeError(f"module 'tcuda' has no attribute '{name}'")
