#!/usr/bin/env python3
"""Compares the data of a captured graph with what cuda.bindings tells of the same graph, on a GPU.

  graph_data_gpu.py LIBRARY [--out FOLDER]

LIBRARY is libtcuda.so. It captures work of PyTorch's: additions, products of matrices, copies,
fills, a host function and two streams. Exit status 1: something differs, 77: no PyTorch, no
cuda.bindings or no GPU.
"""

import argparse
import ctypes
import json
import pathlib
import sys

SKIPPED = 77
RELAXED = 2
KINDS = {0: "kernel", 1: "memcpy", 2: "memset", 3: "host", 5: "empty", 6: "wait_event",
         7: "event_record"}
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Library:
    """The functions of libtcuda that are called here; a status other than 0 is an exception."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.tcuda_last_error.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self.library, f"tcuda_{name}")

        def call(*arguments):
            status = function(*arguments)
            if status != 0:
                message = self.library.tcuda_last_error().decode()
                raise RuntimeError(f"tcuda_{name}: {status}: {message}")
        return call

    def text(self, name, *arguments):
        needed = ctypes.c_size_t()
        getattr(self, name)(*arguments, None, ctypes.c_size_t(0), ctypes.byref(needed))
        text = ctypes.create_string_buffer(needed.value + 1)
        getattr(self, name)(*arguments, text, ctypes.c_size_t(len(text)), None)
        return text.value.decode()


class Oracle:
    """The same data by the node queries of cuda.bindings."""

    def __init__(self, driver, graph):
        self.driver, self.graph = driver, driver.CUgraph(graph)
        _, count = self.ask("cuGraphGetNodes", self.graph, 0)
        self.nodes, _ = self.ask("cuGraphGetNodes", self.graph, count)
        self.index = {int(node): index for index, node in enumerate(self.nodes[:count])}
        self.nodes = self.nodes[:count]

    def ask(self, name, *arguments):
        error, *found = getattr(self.driver, name)(*arguments)
        if int(error) != 0:
            raise RuntimeError(f"{name}: {error}")
        return found[0] if len(found) == 1 else found

    def node(self, node):
        kind = KINDS[int(self.ask("cuGraphNodeGetType", node))]
        found = {"node_type": kind, "kernel_name": None, "grid_dim": None, "block_dim": None,
                 "shared_mem_bytes": None, "parameters": None, "host_fn_addr": 0, "event_ptr": 0,
                 "memory": None}
        if kind == "kernel":
            self.kernel(node, found)
        elif kind == "memcpy":
            copy = self.ask("cuGraphMemcpyNodeGetParams", node)
            ends = {"dst": self.end(copy, "dst"), "src": self.end(copy, "src")}
            found["memory"] = {**ends, "bytes": copy.WidthInBytes * copy.Height * copy.Depth}
        elif kind == "memset":
            fill = self.ask("cuGraphMemsetNodeGetParams", node)
            found["memory"] = {"dst": int(fill.dst), "value": fill.value,
                               "element_bytes": fill.elementSize,
                               "bytes": fill.elementSize * fill.width * fill.height}
        elif kind == "event_record":
            found["event_ptr"] = int(self.ask("cuGraphEventRecordNodeGetEvent", node))
        elif kind == "wait_event":
            found["event_ptr"] = int(self.ask("cuGraphEventWaitNodeGetEvent", node))
        return found

    def kernel(self, node, found):
        params = self.ask("cuGraphKernelNodeGetParams", node)
        found["grid_dim"] = [params.gridDimX, params.gridDimY, params.gridDimZ]
        found["block_dim"] = [params.blockDimX, params.blockDimY, params.blockDimZ]
        found["shared_mem_bytes"] = params.sharedMemBytes
        function = params.func
        if int(function) == 0:
            function = self.ask("cuKernelGetFunction", params.kern)
        found["kernel_name"] = self.ask("cuFuncGetName", function).decode()
        found["parameters"] = []
        while True:
            error, offset, size = self.driver.cuFuncGetParamInfo(
                function, len(found["parameters"]))
            if int(error) != 0:
                break
            found["parameters"].append({"offset": offset, "bytes": size})

    @staticmethod
    def end(copy, which):
        kind = int(getattr(copy, f"{which}MemoryType"))
        if kind == 1:
            return int(getattr(copy, f"{which}Host"))
        return int(getattr(copy, f"{which}Device")) if kind in (2, 4) else 0

    def edges(self):
        first, *_, count = self.ask("cuGraphGetEdges", self.graph, 0)
        del first
        starts, ends, *data, count = self.ask("cuGraphGetEdges", self.graph, count)
        place = {int(node): index for node, index in self.index.items()}
        ports = data[0] if data else [None] * count
        return [{"from": place[int(start)], "to": place[int(end)],
                 "from_port": int(port.from_port) if port else 0,
                 "to_port": int(port.to_port) if port else 0,
                 "type": int(port.type) if port else 0}
                for start, end, port in list(zip(starts, ends, ports))[:count]]


def capture(torch, library):
    """A graph of PyTorch's work, with what must stay alive, and the host function's address."""
    device = torch.device("cuda", 0)
    a, b = (torch.randn(1024, 1024, device=device) for _ in range(2))
    half = a.to(torch.float16)
    out, other, half_out = torch.empty_like(a), torch.empty_like(a), torch.empty_like(half)
    pinned = torch.empty(1024, pin_memory=True)
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    calls = []
    function = HOST_FUNCTION(lambda _: calls.append(1))
    handle, branch, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    library.stream_from_external(0, ctypes.c_void_p(stream.cuda_stream), ctypes.byref(handle))
    library.stream_from_external(0, ctypes.c_void_p(side.cuda_stream), ctypes.byref(branch))

    def work():
        with torch.cuda.stream(stream):
            torch.add(a, b, out=out)
            library.graph_annotation_push(handle, b"products")
            torch.mm(a, b, out=other)
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                torch.mm(half, half, out=half_out)
            library.graph_annotation_push(handle, b"sums")
            torch.sum(other, dim=0, out=out[0])
            library.graph_annotation_pop(handle)
            stream.wait_stream(side)
            library.graph_annotation_pop(handle)
            pinned.copy_(out[0], non_blocking=True)
            other.zero_()
            library.stream_add_callback(handle, function, None, None)
            b.copy_(a)

    work()
    torch.cuda.synchronize()
    library.graph_create(1, ctypes.byref(graph))
    library.graph_capture_begin(graph, handle, None, RELAXED)
    work()
    library.graph_capture_end(graph)
    alive = (a, b, half, out, other, half_out, pinned, stream, side, function)
    return graph, handle, alive, ctypes.cast(function, ctypes.c_void_p).value, calls


def compare(library, oracle, graph, address):
    """Rows (what, is the same), and the data."""
    data = json.loads(library.text("graph_data_json", graph))
    rows = [("number of nodes", len(data["nodes"]) == len(oracle.nodes))]
    for index, (ours, node) in enumerate(zip(data["nodes"], oracle.nodes)):
        expected = oracle.node(node)
        if expected["node_type"] == "host":
            expected["host_fn_addr"] = address
        for key, value in expected.items():
            if ours[key] != value:
                print(f"node {index}, {key}: {ours[key]} instead of {value}")
        rows.append((f"node {index}: {expected['node_type']} {expected['kernel_name'] or ''}"[:100],
                     all(ours[key] == value for key, value in expected.items())))
    edges = oracle.edges()
    rows.append((f"{len(edges)} edges", data["edges"] == edges))
    for index, node in enumerate(data["nodes"]):
        ends = sorted(edge["from"] for edge in edges if edge["to"] == index)
        starts = sorted(edge["to"] for edge in edges if edge["from"] == index)
        if (sorted(node["dependencies"]), sorted(node["dependents"])) != (ends, starts):
            rows.append((f"node {index}: neighbours", False))
    texts = [node["annotations"] for node in data["nodes"]]
    inner = texts.count(["sums", "products"])
    rows.append((f"annotations: {inner} of sums, {texts.count(['products'])} of products alone",
                 inner >= 1 and texts.count(["products"]) >= 2 and texts[0] == []
                 and texts[-1] == []))
    return rows, data


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("library")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    try:
        import torch
        from cuda.bindings import driver
    except ImportError as error:
        print(f"left out: {error}")
        return SKIPPED
    if not torch.cuda.is_available():
        print("left out: there is no GPU")
        return SKIPPED
    torch.cuda.init()
    library = Library(options.library)
    graph, handle, alive, address, calls = capture(torch, library)
    native = ctypes.c_void_p()
    library.graph_native(graph, ctypes.byref(native), None)
    oracle = Oracle(driver, native.value)
    rows, data = compare(library, oracle, graph, address)
    library.graph_instantiate(graph)
    before = len(calls)
    library.graph_replay(graph, handle)
    torch.cuda.synchronize()
    rows.append(("a replay calls the host function once", len(calls) == before + 1))
    dot = library.text("graph_data_dot", graph)
    rows.append((f"DOT: {dot.count(' -> ')} edges", dot.count(" -> ") == len(data["edges"])))
    library.graph_destroy(graph)
    for what, same in rows:
        print(f"{'same' if same else 'DIFFERS':<8} {what}")
    folder = pathlib.Path(options.out)
    (folder / "graph_data.json").write_text(json.dumps(data, indent=1))
    (folder / "graph_data.dot").write_text(dot)
    del alive
    failed = sum(not same for _, same in rows)
    print(f"{len(rows)} comparisons, {failed} differ; {torch.cuda.get_device_name(0)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
