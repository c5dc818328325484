"""PyTorch on tcuda's memory: trains a small ResNet and a small transformer, and captures a graph.

usage: torch_on_tcuda.py [--allocator tcuda|torch] [--library LIBTCUDA] [--part train|graph|all]
                         [--steps N] [--seed N] [--out DIRECTORY]

Prints the losses to the last bit, so that two runs can be compared; with tcuda also its statistics.
OUT gets result.json and, with tcuda, snapshot.pickle (for torch.cuda._memory_viz and PyTorch's
memory_viz page) and snapshot.html (for a browser, offline). See docs/pytorch.md.
"""

import argparse
import ctypes
import json
import os
import pathlib
import sys

SKIPPED = 77

# ---- The allocator: all that a program of one's own needs ----

# What PyTorch accepts beside malloc and free: the method of its allocator, and our function.
HOOKS = {
    "set_init_fn": "tcuda_torch_init",
    "set_reset_fn": "tcuda_torch_reset",
    "set_memory_fraction_fn": "tcuda_torch_memory_fraction",
    "set_base_alloc_fn": "tcuda_torch_base_alloc",
    # Without it Tensor.record_stream does nothing, and memory is reused too early.
    "set_record_stream_fn": "tcuda_torch_record_stream",
    # Without these what a graph allocates is reused while the graph still writes there.
    "set_begin_allocate_to_pool": "tcuda_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "tcuda_torch_end_allocate_to_pool",
    "set_release_pool": "tcuda_torch_release_pool",
}


def use_tcuda(torch, library):
    """Has PyTorch allocate from tcuda; before its first use of CUDA. Gives the library."""
    tcuda = ctypes.CDLL(library)
    tcuda.tcuda_last_error.restype = ctypes.c_char_p
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        library, "tcuda_torch_malloc", "tcuda_torch_free")
    for method, function in HOOKS.items():
        address = ctypes.cast(getattr(tcuda, function), ctypes.c_void_p).value
        getattr(allocator.allocator(), method)(address)
    torch.cuda.memory.change_current_allocator(allocator)
    return tcuda


def ok(tcuda, status):
    if status != 0:
        sys.exit(f"tcuda: {tcuda.tcuda_last_error().decode()}")


def summary(tcuda):
    """torch.cuda.memory_summary(), which PyTorch does not have for the allocators of others."""
    text = ctypes.create_string_buffer(32768)
    ok(tcuda, tcuda.tcuda_memory_summary(-1, 1, text, ctypes.c_size_t(len(text)), None))
    return text.value.decode()


def statistic(tcuda, key):
    value = ctypes.c_uint64()
    ok(tcuda, tcuda.tcuda_memory_stat(-1, key.encode(), ctypes.byref(value)))
    return value.value


def save_snapshot(tcuda, paths):
    """What torch.cuda.memory._dump_snapshot() writes; a path's suffix says in which form."""
    snapshot = ctypes.c_void_p()
    ok(tcuda, tcuda.tcuda_memory_snapshot_create(1, ctypes.byref(snapshot)))
    for path in paths:
        ok(tcuda, tcuda.tcuda_memory_snapshot_save(snapshot, str(path).encode()))
    ok(tcuda, tcuda.tcuda_memory_snapshot_destroy(snapshot))


# ---- What is trained ----


def make_resnet(nn, classes):
    """Residual blocks with BatchNorm, in three stages of which two halve the picture."""

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs),
                nn.ReLU(), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outputs))
            self.shortcut = nn.Identity() if stride == 1 and inputs == outputs else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            return (self.body(x) + self.shortcut(x)).relu()

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
            self.blocks = nn.Sequential(
                Block(64, 64, 1), Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1),
                Block(128, 256, 2), Block(256, 256, 1))
            self.head = nn.Linear(256, classes)

        def forward(self, x):
            # A mean, since the backward pass of pooling has no deterministic form.
            return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    return ResNet()


def make_transformer(torch, vocabulary, width=256, heads=8, layers=4, longest=512):
    """A decoder; attention is written out, so that every step has a deterministic form."""
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x, mask):
            batch, length, _ = x.shape
            split = self.qkv(self.norms[0](x)).view(batch, length, 3, heads, width // heads)
            query, key, value = split.permute(2, 0, 3, 1, 4)
            scores = query @ key.transpose(-2, -1) / (width // heads) ** 0.5
            mixed = (scores + mask).softmax(-1) @ value
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.mlp(self.norms[1](x))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(torch.zeros(longest, width))
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens):
            length = tokens.shape[1]
            x = self.tokens(tokens) + self.positions[:length]
            mask = torch.full((length, length), float("-inf"), device=x.device).triu(1)
            for layer in self.layers:
                x = layer(x, mask)
            return self.head(x)

    return Transformer()


def train(torch, model, batches, optimizer, loss_of):
    """Losses of some steps; batches are copied on a stream of their own, as loaders do it."""
    side, losses = torch.cuda.Stream(), []
    for batch in batches:
        main = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            inputs = [tensor.pin_memory().cuda(non_blocking=True) for tensor in batch]
        main.wait_stream(side)
        for tensor in inputs:
            tensor.record_stream(main)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, *inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_resnet(torch, steps):
    model = make_resnet(torch.nn, 10).cuda()
    # Sizes change, as the last batches of epochs do.
    batches = ((torch.randn(64 - 8 * (step % 4), 3, 32, 32),
                torch.randint(10, (64 - 8 * (step % 4),))) for step in range(steps))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return train(torch, model, batches, optimizer, lambda model, pictures, labels:
                 torch.nn.functional.cross_entropy(model(pictures), labels))


def train_transformer(torch, steps, vocabulary=1000):
    model = make_transformer(torch, vocabulary).cuda()
    lengths = (64 + 37 * (step % 7) for step in range(steps))
    batches = ((torch.randint(vocabulary, (8, length + 1)),) for length in lengths)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    return train(torch, model, batches, optimizer, lambda model, tokens:
                 torch.nn.functional.cross_entropy(
                     model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))


def replay_graphs(torch, steps):
    """A training step and an evaluation as graphs in one pool, with other allocations between."""
    nn, loss_of = torch.nn, torch.nn.functional.mse_loss
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, wanted = torch.randn(64, 256).cuda(), torch.randn(64, 256).cuda()

    def step():
        loss = loss_of(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        return loss

    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            step()
    main.wait_stream(side)
    training, evaluation = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(training):
        loss = step()
    with torch.no_grad(), torch.cuda.graph(evaluation, pool=training.pool()):
        result = loss_of(model(inputs), wanted)
    values, others = [], []
    for index in range(steps):
        inputs.copy_(torch.randn(64, 256))
        training.replay()
        # Memory of the graphs must not come out here, or the next replay writes into it.
        others.append(torch.full((64 * 1024 * (1 + index % 5),), float(index), device="cuda"))
        evaluation.replay()
        values += [loss.item(), result.item()]
        if any(float(other.min()) != float(other.max()) for other in others):
            sys.exit("a graph wrote into memory that was allocated outside of it")
        if index % 3 == 2:
            others.clear()
            torch.cuda.empty_cache()
    return values


PARTS = {
    "train": {"resnet": train_resnet, "transformer": train_transformer},
    "graph": {"graph": replay_graphs},
}
PARTS["all"] = PARTS["train"] | PARTS["graph"]
KEYS = [f"{name}.all.{value}" for name in ("allocation", "allocated_bytes", "requested_bytes")
        for value in ("current", "peak", "allocated", "freed")]


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "target/release/libtcuda.so"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--allocator", choices=("tcuda", "torch"), default="tcuda")
    parser.add_argument("--library", default=str(default))
    parser.add_argument("--part", choices=PARTS, default="all")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    # Read when PyTorch starts CUDA. With expandable segments it rounds as tcuda does.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if options.allocator == "torch":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    try:
        import torch
    except ImportError:
        print("skipped: python3 has no PyTorch")
        sys.exit(SKIPPED)
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(SKIPPED)

    tcuda = None
    if options.allocator == "tcuda":
        tcuda = use_tcuda(torch, options.library)
        ok(tcuda, tcuda.tcuda_memory_record_history(2, None))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    losses = {}
    for name, run in PARTS[options.part].items():
        torch.manual_seed(options.seed)
        losses[name] = run(torch, options.steps)
        print(f"{name}: " + " ".join(f"{loss:.6f}" for loss in losses[name]))
    # What waits for other streams is settled, by either allocator when it looks next.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    if tcuda is None:
        found = torch.cuda.memory_stats()
        statistics = {key: found[key] for key in KEYS}
        print(torch.cuda.memory_summary(abbreviated=True))
    else:
        statistics = {key: statistic(tcuda, key) for key in KEYS}
        print(summary(tcuda))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        if tcuda is not None:
            save_snapshot(tcuda, [options.out / f"snapshot.{form}" for form in ("pickle", "html")])
        result = {
            "allocator": options.allocator, "torch": torch.__version__,
            "device": torch.cuda.get_device_name(), "seed": options.seed,
            "losses": {name: [loss.hex() for loss in found] for name, found in losses.items()},
            "statistics": statistics,
        }
        (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
