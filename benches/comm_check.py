"""Results of collectives beside PyTorch's, byte for byte; comm.py --check."""

import ctypes
import random
import time


class Check:
    def __init__(self, options, ours):
        import torch
        import torch.cuda.comm
        import random_gpu

        self.torch, self.view = torch, random_gpu.Tensor
        for device in range(torch.cuda.device_count()):
            torch.zeros(1, device=device)
        self.ours = ours(options.library, int(options.devices))
        self.n = self.ours.devices
        self.random = random.Random(options.seed)
        self.differences = self.compared = 0

    def list_of(self, tensors):
        views = [self.view.of(tensor) for tensor in tensors]
        return (self.view * max(len(views), 1))(*views), views

    def call(self, function, *arguments):
        self.ours.call(function, *arguments)

    def take(self, outs):
        """The library's tensors as PyTorch's, copied; then they are released."""
        torch, copies = self.torch, []
        for out in outs:
            shape = [out.shape[index] for index in range(out.ndim)]
            strides = [out.strides[index] for index in range(out.ndim)] if out.strides else None
            name = {(2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16",
                    (5, 64): "complex64", (6, 8): "bool", (1, 8): "uint8"}.get(
                        (out.dtype.code, out.dtype.bits), f"int{out.dtype.bits}")
            into = torch.empty(
                shape, dtype=getattr(torch, name), device=f"cuda:{out.device.ordinal}")
            if strides is not None:
                into = torch.empty_strided(shape, strides, dtype=into.dtype, device=into.device)
            last = sum((s - 1) * t for s, t in zip(shape, into.stride()))
            extent = 1 + last if into.numel() else 0
            if extent:
                self.call("tcuda_copy", ctypes.c_void_p(into.data_ptr()),
                          ctypes.c_void_p(out.data + out.byte_offset),
                          ctypes.c_size_t(extent * into.element_size()), None)
            copies.append(into)
        self.ours.sync()
        for out in outs:
            self.call("tcuda_tensor_release", ctypes.byref(out))
        self.ours.sync()
        return copies

    def same(self, what, ours, theirs):
        self.compared += 1
        theirs = theirs.to(ours.device)
        self.ours.sync()
        same = ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if same:
            one, other = (t.contiguous().reshape(-1).view(self.torch.uint8) for t in (ours, theirs))
            same = bool(self.torch.equal(one, other))
        if not same:
            self.differences += 1
            print(f"differs: {what}: {tuple(ours.shape)} {tuple(theirs.shape)}", flush=True)

    def tensor(self, shape, name, device):
        torch = self.torch
        dtype = getattr(torch, name)
        if dtype == torch.bool:
            made = torch.rand(shape, device=device) > 0.5
        elif dtype.is_floating_point or dtype.is_complex:
            made = (torch.randn(shape, device=device) * 3).to(dtype)
        else:
            made = torch.randint(0, 100, shape, device=device).to(dtype)
        if len(shape) > 1 and self.random.random() < 0.3:
            made = made.transpose(0, 1).contiguous().transpose(0, 1)
        return made

    def shape(self):
        dims = self.random.randint(1, 4)
        most = self.random.choice((3, 7, 33, 130) if dims > 1 else (5, 1000, 70_000, 3_000_000))
        return [self.random.randint(1, most) for _ in range(dims)]

    def round(self):
        torch, n = self.torch, self.n
        comm, devices = torch.cuda.comm, list(range(n))
        ordinals = (ctypes.c_int32 * n)(*devices)
        name = self.random.choice(("float32", "float64", "float16", "bfloat16", "int32", "int64",
                                   "int8", "uint8", "bool", "complex64"))
        shape = self.shape()
        what = f"{name} {shape}"
        x = self.tensor(shape, name, 0)
        view = self.view.of(x)
        for device in devices:
            torch.cuda.synchronize(device)

        outs = (self.view * n)()
        self.call("tcuda_comm_broadcast", ctypes.byref(view), ordinals, ctypes.c_size_t(n), outs)
        for out in self.take(outs):
            self.same(f"broadcast {what}", out, x)

        into = [torch.empty_like(x, device=device) for device in devices]
        given, kept = self.list_of(into)
        self.ours.sync()
        self.call("tcuda_comm_broadcast_into", ctypes.byref(view), given, ctypes.c_size_t(n))
        self.ours.sync()
        for out in into:
            self.same(f"broadcast_into {what}", out, x)

        dim = self.random.randrange(len(shape))
        chunks = comm.scatter(x, devices, dim=dim)
        outs = (self.view * n)()
        self.call("tcuda_comm_scatter", ctypes.byref(view), ordinals, None, ctypes.c_size_t(n), dim,
                  None, outs)
        pieces = [out for out in outs if out.shape]
        if len(pieces) != len(chunks):
            print(f"differs: scatter {what}: {len(pieces)} pieces, not {len(chunks)}")
            self.differences += 1
        for out, chunk in zip(self.take(pieces), chunks):
            self.same(f"scatter {what} {dim}", out, chunk)

        given, kept = self.list_of(chunks)
        out = self.view()
        self.ours.sync()
        self.call("tcuda_comm_gather", given, ctypes.c_size_t(len(chunks)), dim, 0,
                  ctypes.byref(out))
        self.same(f"gather {what} {dim}", self.take([out])[0], comm.gather(chunks, dim, 0))

        xs = [self.tensor(shape, name, device) for device in devices]
        root = self.random.randrange(n)
        order = [root] + [device for device in devices if device != root]
        sums = xs[root].clone()
        for device in order[1:]:
            sums = sums + xs[device].to(f"cuda:{root}")
        given, kept = self.list_of(xs)
        out = self.view()
        for device in devices:
            torch.cuda.synchronize(device)
        self.call("tcuda_comm_reduce_add", given, ctypes.c_size_t(n), root, ctypes.byref(out))
        self.same(f"reduce_add {what} to {root}", self.take([out])[0], sums)

        many = [self.tensor(self.shape(), self.random.choice(("float32", "float16", "int64")), 0)
                for _ in range(20)]
        theirs = comm.broadcast_coalesced(many, devices)
        given, kept = self.list_of(many)
        outs = (self.view * (n * len(many)))()
        self.ours.sync()
        self.call("tcuda_comm_broadcast_coalesced", given, ctypes.c_size_t(len(many)), ordinals,
                  ctypes.c_size_t(n), ctypes.c_size_t(self.random.choice((0, 4096, 1 << 20))), outs)
        for index, out in enumerate(self.take(outs)):
            self.same("coalesced", out, theirs[index // len(many)][index % len(many)])


def check(options, ours):
    """`ours` gives the library and the helper."""
    checked = Check(options, ours)
    start = time.monotonic()
    rounds = 0
    while rounds < options.check_rounds and time.monotonic() - start < 150:
        checked.torch.manual_seed(options.seed + rounds)
        checked.round()
        rounds += 1
    print(f"{rounds} rounds on {checked.n} devices, {checked.compared} results compared, "
          f"{checked.differences} differ")
    return 1 if checked.differences else 0
