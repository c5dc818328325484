"""Does PyTorch work on tcuda.torch.enable() as on its own allocator? Each check runs in a process
of its own, so that a crash of one leaves the others alone.

usage: torch_backend.py LIBRARY OUT [CHECK ...]

LIBRARY is libtcuda.so. OUT gets torch_backend.json, and the output of each check. Ends with 77
where there is no PyTorch, or no GPU. About 4 minutes.
"""

import argparse
import gc
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import types

from checks import MIB, SKIPPED, Skipped, fill_in_threads, need, run_all, run_one

PACKAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "python" / "tcuda"


def enable(host=False):
    """tcuda.torch alone: the package around it has a compiled part, which is not used here."""
    if "tcuda" not in sys.modules:
        package = types.ModuleType("tcuda")
        package.__path__ = [str(PACKAGE)]
        sys.modules["tcuda"] = package
    import tcuda.torch

    tcuda.torch.enable(verbose=bool(os.environ.get("VERBOSE")), host=host)
    import torch

    return torch


# ---- Checks: each returns what it saw ----


def check_build():
    start = time.monotonic()
    torch = enable()
    took = time.monotonic() - start
    need(torch.cuda.get_allocator_backend() == "tcuda", torch.cuda.get_allocator_backend())
    x = torch.ones(1000, device="cuda")
    need(float(x.sum()) == 1000.0, "a sum")
    return f"{took:.1f} s; PyTorch {torch.__version__} on {torch.cuda.get_device_name()}"


def check_late():
    import torch

    torch.ones(1, device="cuda")
    try:
        enable()
    except RuntimeError as error:
        need("already" in str(error), error)
        return str(error)
    raise AssertionError("enable() after the first use of CUDA did not raise")


def train(torch):
    """Losses of a small transformer and a convolutional network, and statistics after them."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # The fused forms of attention add up in any order.
    for form in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{form}_sdp")(False)
    torch.manual_seed(1)
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    gpt = nn.ModuleDict({"tokens": nn.Embedding(500, 128),
                         "body": nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
                         "head": nn.Linear(128, 500)}).cuda()
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, 10)).cuda()
    parameters = [*gpt.parameters(), *network.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    side, losses = torch.cuda.Stream(), []
    for step in range(20):
        tokens = torch.randint(500, (8, 33 + 13 * (step % 5)))
        batch = 32 - step % 3
        pictures, labels = torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))
        main = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            inputs = [tensor.pin_memory().cuda(non_blocking=True)
                      for tensor in (tokens, pictures, labels)]
        main.wait_stream(side)
        for tensor in inputs:
            tensor.record_stream(main)
        tokens, pictures, labels = inputs
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1] - 1, device="cuda")
        logits = gpt["head"](gpt["body"](gpt["tokens"](tokens[:, :-1]), mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) \
            + nn.functional.cross_entropy(network(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    del inputs, tensor, tokens, pictures, labels
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    keys = [f"{name}.all.{value}" for name in ("allocation", "allocated_bytes", "requested_bytes")
            for value in ("current", "allocated", "freed", "peak")]
    return {"losses": [loss.hex() for loss in losses], "stats": {key: stats[key] for key in keys},
            "keys": sorted(stats)}


def check_train():
    ours = train(enable())
    child = subprocess.run([sys.executable, __file__, "--torch-train"], text=True,
                           capture_output=True, check=False)
    need(child.returncode == 0, "PyTorch alone:", child.stderr[-2000:])
    theirs = json.loads(child.stdout.strip().splitlines()[-1])
    need(ours["losses"] == theirs["losses"], ours["losses"], theirs["losses"])
    need(ours["keys"] == theirs["keys"], "keys of memory_stats:",
         sorted(set(ours["keys"]) ^ set(theirs["keys"])))
    differing = {key: (value, theirs["stats"][key]) for key, value in ours["stats"].items()
                 if value != theirs["stats"][key]}
    need(all(key.endswith(".peak") for key in differing), "statistics, tcuda and PyTorch:",
         differing)
    first, last = float.fromhex(ours["losses"][0]), float.fromhex(ours["losses"][-1])
    return f"20 losses equal to the last bit, {first:.4f} to {last:.4f}; statistics equal, " \
           f"except {differing or 'none'}"


def check_statistics():
    torch = enable()
    cuda = torch.cuda
    torch.zeros(1, device="cuda")
    gc.collect()
    before = cuda.memory_allocated()
    x = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    need(cuda.memory_allocated() - before == 4 * MIB, cuda.memory_allocated(), before)
    y = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
    peak = cuda.max_memory_allocated()
    need(peak >= before + 7 * MIB, peak)
    del y
    need(cuda.max_memory_allocated() == peak, "the peak stays")
    cuda.reset_peak_memory_stats()
    need(cuda.max_memory_allocated() == before + 4 * MIB, cuda.max_memory_allocated())
    reserved = cuda.memory_reserved()
    need(reserved >= cuda.memory_allocated(), reserved)
    big = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    del big
    cuda.empty_cache()
    need(cuda.memory_reserved() <= reserved + 2 * MIB, cuda.memory_reserved(), reserved)
    stats = cuda.memory_stats()
    need(stats["allocated_bytes.all.current"] == cuda.memory_allocated(), "memory_stats")
    summary = cuda.memory_summary()
    need("Allocated memory" in summary, summary)
    segments = cuda.memory_snapshot()
    held = sum(block["size"] for segment in segments for block in segment["blocks"]
               if block["state"] == "active_allocated")
    need(held == cuda.memory_allocated(), held, cuda.memory_allocated())
    need(any(segment["address"] <= x.data_ptr() < segment["address"] + segment["total_size"]
             for segment in segments), "the tensor's segment")
    need(sum(segment["total_size"] for segment in segments) == cuda.memory_reserved(), "segments")
    cuda.reset_accumulated_memory_stats()
    need(cuda.memory_stats()["allocation.all.allocated"] == 0, "reset_accumulated_memory_stats")
    free, total = cuda.mem_get_info()
    need(0 < free < total, free, total)
    others = []
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_allocated"):
        need(torch.accelerator.memory_allocated() == cuda.memory_allocated(), "torch.accelerator")
        torch.accelerator.empty_cache()
        others.append("torch.accelerator")
    return f"memory_stats with {len(stats)} keys, {len(segments)} segments {' '.join(others)}"


def check_history():
    torch = enable()
    memory = torch.cuda.memory
    torch.zeros(1, device="cuda")
    memory._record_memory_history(max_entries=10000)

    def allocate_here():
        return torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda")

    if hasattr(memory, "_set_memory_metadata"):
        memory._set_memory_metadata("step 1")
    held = allocate_here()
    torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    snapshot = memory._snapshot()
    trace = snapshot["device_traces"][0]
    alloc = [event for event in trace
             if event["action"] == "alloc" and event["addr"] == held.data_ptr()]
    need(len(alloc) == 1, trace[:10])
    need(any(frame["name"] == "allocate_here" for frame in alloc[0]["frames"]), alloc)
    need(abs(alloc[0]["time_us"] / 1e6 - time.time()) < 100, alloc[0]["time_us"], time.time())
    if hasattr(memory, "_set_memory_metadata"):
        need(alloc[0].get("user_metadata") == "step 1", alloc[0].get("user_metadata"))
        need(memory._get_memory_metadata() == "step 1", memory._get_memory_metadata())
    need({"alloc", "free_requested", "free_completed"} <= {event["action"] for event in trace},
         {event["action"] for event in trace})
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]
              if block["address"] == held.data_ptr()]
    need(len(blocks) == 1 and any(frame["name"] == "allocate_here"
                                  for frame in blocks[0]["frames"]), blocks)
    segment = next(segment for segment in snapshot["segments"] if segment["address"]
                   <= held.data_ptr() < segment["address"] + segment["total_size"])
    need(any(frame["name"] == "allocate_here" for frame in segment.get("frames", [])), segment)
    need(trace[-1]["action"] == "free_completed", trace[-3:])
    torch.cuda.empty_cache()
    released = [event for event in memory._snapshot()["device_traces"][0]
                if event["action"] in ("segment_unmap", "segment_free")]
    need(released and any("empty_cache" in frame["name"] for frame in released[-1]["frames"]),
         released)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        memory._dump_snapshot(path)
        with open(path, "rb") as file:
            loaded = pickle.load(file)
    from torch.cuda import _memory_viz

    page = _memory_viz.trace_plot(loaded)
    need("</script>" in page or len(page) > 1000, page[:200])
    memory._record_memory_history(enabled=None)
    need(not memory._snapshot()["device_traces"][0], "the history ends")
    memory._record_memory_history("state", stacks="all")
    again = allocate_here()
    blocks = [block for segment in memory._snapshot()["segments"] for block in segment["blocks"]
              if block["address"] == again.data_ptr()]
    need(blocks and blocks[0]["frames"], blocks)
    return f"{len(trace)} events, {len(alloc[0]['frames'])} frames, a page of {len(page)} bytes"


def check_out_of_memory():
    torch = enable()
    cuda = torch.cuda
    seen, texts = [], []
    model = torch.nn.Linear(1000, 1000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))

    def step():
        loss = model(torch.ones(64, 1000, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    first = step()
    for size in (1 << 45, 1 << 62):
        try:
            torch.empty(size, dtype=torch.uint8, device="cuda")
            raise AssertionError(f"{size} bytes were allocated")
        except cuda.OutOfMemoryError as error:
            texts.append(str(error))
    need(len(seen) == 1, seen)
    total = cuda.mem_get_info()[1]
    cuda.set_per_process_memory_fraction(0.02)
    need(abs(cuda.get_per_process_memory_fraction() - 0.02) < 1e-9, "the fraction")
    held = []
    try:
        while True:
            held.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
            need(len(held) < 1000, "no end")
    except torch.OutOfMemoryError as error:
        texts.append(str(error))
    need(len(held) * 256 * MIB <= 0.02 * total, len(held), total)
    need(all(text.startswith("CUDA out of memory.") for text in texts), texts)
    need(len(seen) == 2 and 0 < seen[1][1] and 0 < seen[1][2] <= total, seen)
    need(cuda.memory_stats()["num_ooms"] == 2, cuda.memory_stats()["num_ooms"])
    held.clear()
    last = [step() for _ in range(5)][-1]
    need(last < first, first, last)
    return f"{seen}; {texts[-1][:300]}"


def check_cudnn_benchmark():
    torch = enable()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    convolution = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
    x = torch.randn(8, 16, 64, 64, device="cuda", requires_grad=True)
    found = convolution(x)
    found.sum().backward()
    wanted = torch.nn.functional.conv2d(
        x.double(), convolution.weight.double(), convolution.bias.double(), padding=1)
    error = float((found.double() - wanted).abs().max())
    need(error < 0.01, error)
    return f"largest difference {error:.2e}"


def check_pool():
    torch = enable()
    cuda = torch.cuda
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        x = torch.full((4 * MIB,), 1.0, device="cuda")
    y = torch.full((4 * MIB,), 2.0, device="cuda")
    segments = pool.snapshot()

    def inside(tensor):
        return any(segment["address"] <= tensor.data_ptr()
                   < segment["address"] + segment["total_size"] for segment in segments)

    need(inside(x) and not inside(y), segments)
    need(all(tuple(segment["segment_pool_id"]) == tuple(pool.id) for segment in segments), segments)
    need(pool.use_count() == 1, pool.use_count())
    others = []

    def on_thread():
        others.append(torch.full((4 * MIB,), 3.0, device="cuda"))

    with cuda.use_mem_pool(pool):
        need(pool.use_count() == 2, pool.use_count())
        thread = threading.Thread(target=on_thread)
        thread.start()
        thread.join()
    segments = pool.snapshot()
    need(not inside(others[0]), "another thread's memory is not the pool's")
    need(float(x.sum()) == 4 * MIB, "contents")
    reserved = cuda.memory_reserved()
    address = x.data_ptr()
    del x, pool
    gc.collect()
    cuda.empty_cache()
    need(cuda.memory_reserved() <= reserved - 16 * MIB, cuda.memory_reserved(), reserved)
    second = cuda.MemPool(use_on_oom=True)
    with cuda.use_mem_pool(second):
        z = torch.ones(MIB, device="cuda")
    need(float(z.sum()) == MIB, "use_on_oom")
    third = cuda.MemPool(no_split=True)
    with cuda.use_mem_pool(third):
        z = torch.ones(1000, device="cuda")
        w = torch.ones(1000, device="cuda")
    need(len(third.snapshot()) == 2, third.snapshot())
    with cuda.use_mem_pool(second), cuda.use_mem_pool(third):
        v = torch.ones(1000, device="cuda")
    segments = third.snapshot()
    need(inside(v), "of nested pools the inner one is used")
    need(float((z + w + v).sum()) == 3000, "no_split")
    return f"{len(segments)} segments; was at {address:#x}"


SOURCE = r"""
#include <stddef.h>
extern int cudaMalloc(void **ptr, size_t bytes);
extern int cudaFree(void *ptr);
int taken, given;
void *take(ptrdiff_t bytes, int device, void *stream) {
    void *ptr = NULL;
    taken++;
    return cudaMalloc(&ptr, (size_t)bytes) == 0 ? ptr : NULL;
}
void give(void *ptr, ptrdiff_t bytes, int device, void *stream) { given++; cudaFree(ptr); }
int count_taken(void) { return taken; }
int count_given(void) { return given; }
"""


def check_pool_allocator():
    import ctypes

    torch = enable()
    cuda = torch.cuda
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "a.c"), os.path.join(folder, "a.so")
        with open(source, "w") as file:
            file.write(SOURCE)
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", source, "-o", library], check=True)
        allocator = cuda.memory.CUDAPluggableAllocator(library, "take", "give")
        counts = ctypes.CDLL(library)
        pool = cuda.MemPool(allocator.allocator())
        with cuda.use_mem_pool(pool):
            x = torch.full((8 * MIB,), 1.0, device="cuda")
        need(float(x.sum()) == 8 * MIB, "contents")
        taken = counts.count_taken()
        need(taken >= 1, taken)
        del x, pool
        gc.collect()
        cuda.empty_cache()
        given = counts.count_given()
        need(given == counts.count_taken(), given, counts.count_taken())
        # More than can have memory at the same time.
        for index in range(300):
            other = cuda.memory.CUDAPluggableAllocator(library, "take", "give")
            pool = cuda.MemPool(other.allocator())
            with cuda.use_mem_pool(pool):
                x = torch.full((1000,), float(index), device="cuda")
            need(float(x[999]) == index, "contents", index)
            del x, pool, other
            cuda.empty_cache()
        need(counts.count_given() == counts.count_taken() >= taken + 300, counts.count_given())
        return f"{taken} segments of the allocator, all given back; 300 more allocators"


def check_graphs():
    torch = enable()
    cuda, nn = torch.cuda, torch.nn
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    inputs = torch.randn(64, 256, device="cuda")

    def work():
        return model(inputs).square().mean(1)

    with torch.no_grad():
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            work()
        cuda.current_stream().wait_stream(side)
        graph, second = cuda.CUDAGraph(), cuda.CUDAGraph()
        with cuda.graph(graph):
            found = work()
        with cuda.graph(second, pool=graph.pool()):
            sums = work().sum()
        others = []
        for index in range(20):
            inputs.copy_(torch.randn(64, 256))
            graph.replay()
            others.append(torch.full((128 * 1024 * (1 + index % 5),), float(index), device="cuda"))
            second.replay()
            wanted = work()
            need(torch.equal(found, wanted), "a replay differs at", index)
            need(abs(float(sums) - float(wanted.sum())) < 1e-3, float(sums), float(wanted.sum()))
            for value, other in enumerate(others):
                need(float(other.min()) == float(other.max()) == float(value), "corrupted", value)
            if index % 7 == 6:
                cuda.empty_cache()
        handle = cuda.graph_pool_handle()
        third = cuda.CUDAGraph()
        with cuda.graph(third, pool=handle):
            kept = inputs * 2
            dropped = kept + 1
            out = dropped.sum()
            del dropped
        cuda.empty_cache()
        third.replay()
        need(abs(float(out) - float((inputs * 2 + 1).sum())) < 1, "a pool by handle")
        pools = {tuple(segment["segment_pool_id"]) for segment in cuda.memory_snapshot()}
        need(len(pools) == 3, pools)
        graph.reset(), second.reset(), third.reset()
        del found, sums, kept, out, graph, second, third
        torch._C._cuda_clearCublasWorkspaces()  # captures have some in their pools
        gc.collect()
        cuda.empty_cache()
        left = {tuple(segment["segment_pool_id"]) for segment in cuda.memory_snapshot()}
        need(left == {(0, 0)}, left)
    graphed = cuda.make_graphed_callables(model, (torch.randn(64, 256, device="cuda"),))
    loss = graphed(torch.randn(64, 256, device="cuda")).sum()
    loss.backward()
    need(all(p.grad is not None for p in model.parameters()), "gradients")
    return f"pools {sorted(pools)}; make_graphed_callables"


def check_graph_end():
    """The memory of a graph that ends while its replay runs on another stream than its capture."""
    torch = enable()
    cuda = torch.cuda
    torch.ones(1, device="cuda").add_(1)
    cuda._sleep(1)
    for index in range(20):
        graph, stream = cuda.CUDAGraph(), cuda.Stream()
        with cuda.stream(stream):
            graph.capture_begin()
            cuda._sleep(20_000_000)
            held = torch.ones(64 * MIB // 4, device="cuda") + 1
            graph.capture_end()
        replayed = cuda.Stream() if index % 2 else cuda.current_stream()
        with cuda.stream(replayed):
            graph.replay()
        need(not replayed.query(), "the replay is over before the test")
        del held
        graph.reset()
        second = cuda.CUDAGraph()
        with cuda.stream(stream):
            second.capture_begin()
            other = torch.zeros(64 * MIB // 4, device="cuda")
            second.capture_end()
        if index % 4 < 2:
            second.replay()
        del other
        second.reset()
        cuda.empty_cache()
        need(replayed.query(), "memory went back to the driver before the end of the replay")
        cuda.synchronize()
    reserved = cuda.memory_reserved()
    need(reserved <= 8 * MIB, reserved)
    return f"20 graphs; {reserved} bytes reserved after them"


def check_compile():
    torch = enable()
    try:
        import triton
    except ImportError as error:
        raise Skipped(f"no Triton: {error}") from error
    from torch._inductor import config, cudagraph_trees

    config.triton.slow_path_cudagraph_asserts = True
    config.triton.fast_path_cudagraph_asserts = True
    torch.manual_seed(1)

    def one(x):
        return (x.sin() @ x).relu(), x * 2

    def two(x):
        return x.cos() @ x + 1

    def three(x):
        return (x - 1).sum(0), x @ x

    fast = [torch.compile(f, mode="reduce-overhead") for f in (one, two, three)]
    with torch.no_grad():
        for index in range(12):
            x = torch.randn(128, 128, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            a, b = fast[0](x)
            wanted_a, wanted_b = one(x)
            if index % 3 == 1:
                del b  # dies between recordings
            # Of the three paths after the first graph each is recorded after it was replayed.
            if index % 4 < 2:
                c = fast[1](a)
                need(torch.allclose(c, two(wanted_a), rtol=1e-3, atol=0.1), "two at", index)
            else:
                c, d = fast[2](a)
                need(torch.allclose(d, three(wanted_a)[1], rtol=1e-3, atol=1.0), "three at", index)
            need(torch.allclose(a, wanted_a, rtol=1e-3, atol=0.1), "one at", index)
            if index % 3 != 1:
                need(torch.equal(b, wanted_b), "b at", index)
    manager = cudagraph_trees.get_container(0).tree_manager
    checkpoints, graphs = manager.debug_checkpointing_counter, manager.new_graph_id().id
    need(graphs >= 3, graphs)
    need(checkpoints >= 1, checkpoints)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    twin = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, mode="reduce-overhead")
    for _ in range(8):
        x = torch.randn(32, 64, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        losses = []
        for network, owner in ((compiled, model), (twin, twin)):
            loss = network(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in owner.parameters():
                    parameter -= 0.05 * parameter.grad
                    parameter.grad = None
            losses.append(loss.item())
        need(abs(losses[0] - losses[1]) < 1e-3, losses)
    return f"Triton {triton.__version__}, {graphs} graphs, {checkpoints} checkpoints"


def check_record_stream():
    torch = enable()
    cuda = torch.cuda
    side = cuda.Stream()
    x = torch.zeros(MIB, device="cuda")
    # Kernels are loaded at their first use, which may wait for the device.
    torch.full_like(x + 1, 7.0)
    cuda._sleep(1)
    cuda.synchronize()
    address = x.data_ptr()
    with cuda.stream(side):
        cuda._sleep(2_000_000_000)
        y = x + 1
    x.record_stream(side)
    del x
    z = torch.full((MIB,), 7.0, device="cuda")
    need(z.data_ptr() != address, "memory was reused while another stream reads it")
    need(not side.query(), "the stream was done already")
    side.synchronize()
    need(float(y.sum()) == MIB, float(y.sum()))
    again = []
    for _ in range(8):
        again.append(torch.empty(MIB, device="cuda"))
    need(address in {tensor.data_ptr() for tensor in again}, "memory comes back")
    return "not reused before the stream was done, and reused after that"


def pinned_waits(torch):
    """Pinned memory that copies use is not reused before they are done."""
    cuda = torch.cuda
    size = 32 * MIB
    side = cuda.Stream()
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    warm = torch.full((size,), 1, dtype=torch.uint8).pin_memory()
    there.copy_(warm, non_blocking=True)
    cuda._sleep(1)
    cuda.synchronize()
    del warm
    for is_upload in (True, False):
        here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        need(here.is_pinned(), "is_pinned")
        here.fill_(1)
        there.fill_(3)
        cuda.synchronize()
        address, seen = here.data_ptr(), None
        with cuda.stream(side):
            cuda._sleep(2_000_000_000)
            if is_upload:
                there.copy_(here, non_blocking=True)
            else:
                seen = here.copy_(there, non_blocking=True)[:0]  # a view: the copy's bytes stay
        del here, seen
        other = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        need(other.data_ptr() != address, "pinned memory was reused while a copy uses it")
        other.fill_(7)
        need(not side.query(), "the stream was done already")
        side.synchronize()
        need(int(other.min()) == int(other.max()) == 7, "the copy wrote to reused memory")
        if is_upload:
            need(int(there.min()) == int(there.max()) == 1, "the copy read reused memory")
        del other
        again = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(3)]
        need(address in {tensor.data_ptr() for tensor in again}, "pinned memory comes back")
        del again


def check_pinned():
    import ctypes

    torch = enable(host=True)
    cuda = torch.cuda
    first = torch.arange(1000).pin_memory()  # before the first use of a GPU
    need(first.is_pinned() and not torch.arange(1000).is_pinned(), "is_pinned")
    need(int(first.sum()) == 499500, "contents")
    tcuda = ctypes.CDLL(os.environ["TCUDA_LIBRARY"])
    record = tcuda.tcuda_host_record
    record.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    need(record(first.data_ptr(), None) == 0, "tcuda does not know the memory")
    need(record(torch.arange(1000).data_ptr(), None) != 0, "tcuda takes any memory for its own")
    pinned_waits(torch)
    gc.collect()
    cuda.synchronize()
    cuda.reset_peak_host_memory_stats()
    cuda.reset_accumulated_host_memory_stats()
    before = cuda.host_memory_stats()
    need(before["active_requests.current"] == 1, before)
    held = [torch.empty(MIB, dtype=torch.uint8, pin_memory=True) for _ in range(5)]
    held = held[:2]
    after = cuda.host_memory_stats()
    need(after["active_requests.current"] == 3, after)
    need(after["active_requests.peak"] == 6, after)
    need(after["active_requests.allocated"] == 5 and after["active_requests.freed"] == 3, after)
    need(after["active_bytes.current"] - before["active_bytes.current"] == 2 * MIB, after)
    need(after["allocated_bytes.current"] >= after["active_bytes.current"], after)
    big = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    grown = cuda.host_memory_stats()
    need(grown["num_host_alloc"] > after["num_host_alloc"], grown)
    need(grown["host_alloc_time.total"] > after["host_alloc_time.total"], grown)
    del big
    torch._C._host_emptyCache()
    small = cuda.host_memory_stats()
    need(small["allocated_bytes.current"] <= grown["allocated_bytes.current"] - 256 * MIB, small)
    need(small["num_host_free"] > 0, small)
    foreign = torch.ones(1000)
    foreign.cuda(non_blocking=True)  # memory that is not pinned
    if hasattr(cuda.cudart(), "cudaHostRegister"):
        need(int(cuda.cudart().cudaHostRegister(foreign.data_ptr(), 4000, 0)) == 0, "register")
        need(foreign.is_pinned(), "registered memory is pinned")
        need(float(foreign.cuda(non_blocking=True).sum()) == 1000, "registered memory")
        cuda.synchronize()
        cuda.cudart().cudaHostUnregister(foreign.data_ptr())
    data = torch.utils.data.TensorDataset(torch.arange(6400).reshape(64, 100))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    total = 0
    for _ in range(3):
        for (batch,) in loader:
            need(batch.is_pinned(), "a batch of DataLoader")
            need(record(batch.data_ptr(), None) == 0, "a batch that is not tcuda's")
            total += int(batch.cuda(non_blocking=True).sum())
    need(total == 3 * 6400 * 6399 // 2, total)
    return f"host_memory_stats {small}"


def check_pinned_graph():
    torch = enable(host=True)
    cuda = torch.cuda
    size = 1 << 20
    there = torch.zeros(size, device="cuda")
    earlier = torch.full((size,), 5.0).pin_memory()
    cuda.synchronize()
    graph, other = cuda.CUDAGraph(), cuda.Stream()
    with cuda.graph(graph):
        within = torch.full((size,), 3.0).pin_memory()
        there.copy_(within, non_blocking=True)
        other.wait_stream(cuda.current_stream())
        with cuda.stream(other):  # new to tcuda while it is captured
            there.add_(earlier.to("cuda", non_blocking=True))
        cuda.current_stream().wait_stream(other)
    addresses = {within.data_ptr(), earlier.data_ptr()}
    del within, earlier
    held = []
    for index in range(10):
        held.append(torch.full((size,), 9.0).pin_memory())
        need(held[-1].data_ptr() not in addresses, "memory of a graph was reused")
        graph.replay()
        need(float(there.min()) == float(there.max()) == 8.0, float(there.min()), index)
    del held
    torch._C._host_emptyCache()
    graph.replay()
    need(float(there.min()) == float(there.max()) == 8.0, "after empty_cache")
    before = cuda.host_memory_stats()["active_requests.current"]
    graph.reset()
    del graph
    gc.collect()
    torch._C._host_emptyCache()
    after = cuda.host_memory_stats()["active_requests.current"]
    need(after == before - 2, before, after)
    return f"blocks in use: {before} with the graph, {after} after it"


def check_pinned_late():
    torch = enable()
    held = torch.empty(1000, pin_memory=True)
    try:
        enable(host=True)
    except RuntimeError as error:
        need("pinned memory already" in str(error), error)
        need(held.is_pinned(), "is_pinned")
        return str(error).splitlines()[0]
    raise AssertionError("enable(host=True) after pinned memory did not raise")


CHILD = """
import sys, torch
torch.ones(1, device="cuda")
pinned = torch.ones(1).pin_memory()
module = sys.modules.get("tcuda.torch")
print(torch.cuda.get_allocator_backend(), bool(module and module.is_host_enabled()))
"""
PARENT = """
import torch
from child import report
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        context = torch.multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=report, args=(queue,))
        process.start()
        print(queue.get(timeout=60))
        process.join()
"""
CHILD_MODULE = """
def report(queue):
    import torch
    x = torch.ones(1, device="cuda")
    queue.put(torch.cuda.get_allocator_backend())
"""


def check_children():
    """Programs that know nothing of tcuda, and processes that they start."""
    import tomllib

    project = tomllib.loads((PACKAGE.parent.parent / "pyproject.toml").read_text())
    entry = project["project"]["entry-points"]["torch.backends"]["tcuda"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # What a wheel installs, without the compiled part.
        (folder / "tcuda").mkdir()
        (folder / "tcuda/__init__.py").touch()
        (folder / "tcuda/torch").symlink_to(PACKAGE / "torch")
        (folder / "_tcuda_torch.py").write_text((PACKAGE.parent / "_tcuda_torch.py").read_text())
        (folder / "tcuda-0.dist-info").mkdir()
        (folder / "tcuda-0.dist-info/METADATA").write_text("Name: tcuda\nVersion: 0\n")
        (folder / "tcuda-0.dist-info/entry_points.txt").write_text(
            f"[torch.backends]\ntcuda = {entry}\n")
        (folder / "child.py").write_text(CHILD_MODULE)
        (folder / "parent.py").write_text(PARENT)
        runs = []
        for value, *program in ((None, "-c", CHILD), ("0", "-c", CHILD), ("1", "-c", CHILD),
                                ("host", "-c", CHILD), ("1", "parent.py"), ("on", "-c", CHILD)):
            environment = dict(os.environ, PYTHONPATH=name)
            environment.pop("TCUDA_TORCH", None)
            if value is not None:
                environment["TCUDA_TORCH"] = value
            runs.append(subprocess.Popen([sys.executable, *program], cwd=name, env=environment,
                                         text=True, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE))
        found = []
        for child in runs:
            said, errors = child.communicate()
            found.append(said.split() if child.returncode == 0
                         else ["TCUDA_TORCH is 'on'" in errors or errors[-2000:]])
    need(found == [["native", "False"], ["native", "False"], ["tcuda", "False"], ["tcuda", "True"],
                   ["tcuda", "tcuda"], [True]], found)
    return "python -c, spawn and forkserver use tcuda where TCUDA_TORCH is set"


def ipc_child(inbox, outbox):
    try:
        torch = enable()
        first, part = inbox.get(timeout=40)
        outbox.put([float(first.sum()), float(part.sum()), part.numel()])
        first.add_(1)
        torch.cuda.synchronize()
        del first, part
        inbox.get(timeout=40)
        made = torch.full((3 * MIB,), 5.0, device="cuda")
        outbox.put(made)
        inbox.get(timeout=40)
        del made
        outbox.put("done")
        inbox.get(timeout=40)
    except BaseException as error:
        outbox.put(f"{type(error).__name__}: {error}")
        raise


def check_ipc():
    torch = enable()
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=ipc_child, args=(inbox, outbox))
    child.start()
    try:
        before = torch.cuda.memory_allocated()
        x = torch.arange(MIB, dtype=torch.float32, device="cuda")
        y = torch.ones(1000, device="cuda")
        total = float(x.sum())
        inbox.put((x, y[100:]))
        found = outbox.get(timeout=60)
        need(found == [total, 900.0, 900], found)
        inbox.put(None)
        got = outbox.get(timeout=60)
        need(not isinstance(got, str), got)
        need(float(x[0]) == 1.0, "what the child wrote", float(x[0]))
        need(float(got.sum()) == 15 * MIB, float(got.sum()))
        got += 1
        torch.cuda.synchronize()
        del got
        inbox.put(None)
        need(outbox.get(timeout=60) == "done", "the child ends")
        del x, y
        gc.collect()
        torch.cuda.ipc_collect()
        left = torch.cuda.memory_allocated() - before
        inbox.put(None)
        child.join(30)
        need(child.exitcode == 0, child.exitcode)
        return f"both ways; {left} bytes stay allocated here after ipc_collect"
    finally:
        if child.is_alive():
            child.kill()


def check_profiler():
    torch = enable()
    torch.zeros(1, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        x = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        x.fill_(1)
        del x
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events = [event for event in json.load(file)["traceEvents"]
                      if event.get("name") == "[memory]"]
    sizes = [event["args"]["Bytes"] for event in events if event["args"]["Device Type"] == 1]
    need(8 * MIB in sizes and -8 * MIB in sizes, sizes)
    return f"sizes {sizes}"


def check_settings():
    torch = enable()
    cuda = torch.cuda
    torch.zeros(1, device="cuda")
    block = cuda.caching_allocator_alloc(5000)
    cuda.caching_allocator_delete(block)
    try:
        cuda.caching_allocator_delete(block)
        raise AssertionError("a second free of a block did not raise")
    except RuntimeError as error:
        text = str(error).splitlines()[0]
    torch._C._accelerator_setAllocatorSettings(
        "max_split_size_mb:256,pinned_num_register_threads:4")
    own = cuda.memory._snapshot()["allocator_settings"]
    need(own["pinned_num_register_threads"] == 4, own)  # PyTorch's own parser still has it
    need(cuda.memory_stats()["max_split_size"] == 256 * MIB, cuda.memory_stats()["max_split_size"])
    cuda.memory.caching_allocator_enable(False)
    before = cuda.memory_reserved()
    x = torch.ones(20 * MIB, dtype=torch.uint8, device="cuda")
    del x
    need(cuda.memory_reserved() <= before, "without the cache", cuda.memory_reserved(), before)
    cuda.memory.caching_allocator_enable(True)
    sizes = ""
    if hasattr(torch._C, "_cuda_getMemoryFraction"):
        sizes = f"; fraction {torch._C._cuda_getMemoryFraction(0)}"
    return text[:200] + sizes


def check_threads():
    torch = enable()
    fill_in_threads(lambda count, value: torch.full((count,), value, device="cuda"),
                    lambda: torch.cuda.stream(torch.cuda.Stream()))
    return f"6 threads; {torch.cuda.memory_stats()['allocation.all.allocated']} allocations"


def check_devices():
    torch = enable()
    if torch.cuda.device_count() < 2:
        raise Skipped("one GPU")
    x = torch.arange(MIB, device="cuda:0")
    y = x.to("cuda:1")
    z = torch.ones(MIB, dtype=torch.int64, device="cuda:1")
    need(torch.equal((y + z).cpu(), x.cpu() + 1), "copies between devices")
    stream = torch.cuda.Stream(device=1)
    x.record_stream(stream)
    need(torch.cuda.memory_allocated(1) >= 16 * MIB, torch.cuda.memory_allocated(1))
    return "copies between two devices"


CHECKS = {name[6:]: function for name, function in list(globals().items())
          if name.startswith("check_")}
SECONDS = {"build": 150, "compile": 150, "ipc": 120, "train": 120}


def main():
    run_one(CHECKS)
    if sys.argv[1:2] == ["--torch-train"]:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        import torch

        print("\n" + json.dumps(train(torch)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("checks", nargs="*", default=list(CHECKS))
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: python3 has no PyTorch")
        sys.exit(SKIPPED)
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(SKIPPED)
    out = options.out.resolve()
    os.environ["TCUDA_LIBRARY"] = str(options.library.resolve())
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ.setdefault("TCUDA_TORCH_CACHE", str(out / "cache"))
    run_all(options.checks, out, lambda name: SECONDS.get(name, 75))


if __name__ == "__main__":
    main()
