"""Makes tcuda the allocator of PyTorch where the environment asks for it.

PyTorch calls `load` at the end of `import torch`, in each process. It is outside the package tcuda,
so that processes without TCUDA_TORCH do not load libtcuda.
"""

from __future__ import annotations

import os


def load() -> None:
    """TCUDA_TORCH=1: tcuda.torch.enable(); =host: with pinned memory; empty, 0 or unset: no-op.

    Raises ValueError for other values, and what tcuda.torch.enable() raises.
    """
    value = os.environ.get("TCUDA_TORCH", "")
    if value in ("", "0"):
        return
    if value not in ("1", "host"):
        raise ValueError(f"TCUDA_TORCH is {value!r}: 1, host or 0 are possible")
    import tcuda.torch

    tcuda.torch.enable(host=value == "host")
