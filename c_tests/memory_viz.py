"""The pickle of a snapshot, as Python and PyTorch's viewer read it; and the JSON, which agrees.

usage: memory_viz.py LIBRARY    (torch/cuda/_memory_viz.py is tried too where torch can be imported,
                                 or where TCUDA_MEMORY_VIZ names the file)
"""

import ctypes
import importlib.util
import json
import os
import pickle
import pickletools
import sys
import tempfile
import threading

MIB = 1 << 20
# What the viewer's own unpickler knows.
OPCODES = set(
    "PROTO FRAME MARK STOP EMPTY_DICT EMPTY_LIST EMPTY_TUPLE LIST DICT TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 APPEND "
    "APPENDS SETITEM SETITEMS NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT "
    "SHORT_BINUNICODE BINUNICODE BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE".split()
)
SEGMENT = {
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
    "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple,
    "is_expandable": bool, "frames": list, "blocks": list,
}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
ENTRY = {
    "action": str, "addr": int, "size": int, "stream": int, "time_us": int, "compile_context": str,
    "user_metadata": str, "pool_id": tuple, "frames": list,
}
FRAME = {"name": str, "filename": str, "line": int}
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": str, "max_split_size": int, "garbage_collection_threshold": float,
    "expandable_segments": bool, "pinned_num_register_threads": int,
    "release_lock_on_cudamalloc": bool, "pinned_use_cuda_host_register": bool,
    "graph_capture_record_stream_reuse": bool, "roundup_power2_divisions": dict,
}

tcuda = ctypes.CDLL(sys.argv[1])
tcuda.tcuda_last_error.restype = ctypes.c_char_p


class Frame(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("filename", ctypes.c_char_p), ("line", ctypes.c_int32)]


FRAMES_FN = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(Frame), ctypes.c_size_t)
KEPT = []


@FRAMES_FN
def frames_of(_, frames, capacity):
    stack, depth = sys._getframe(1), 0
    while stack is not None and depth < capacity:
        code = stack.f_code
        texts = code.co_name.encode(), code.co_filename.encode()
        KEPT.append(texts)
        frames[depth].name, frames[depth].filename = texts
        frames[depth].line = stack.f_lineno
        stack, depth = stack.f_back, depth + 1
    return depth


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("max_entries", ctypes.c_size_t),
        ("frames_for", ctypes.c_int32), ("flags", ctypes.c_uint32),
        ("skip_actions", ctypes.c_char_p), ("frames", FRAMES_FN), ("user_data", ctypes.c_void_p),
        ("destroy", ctypes.c_void_p),
    ]


def ok(status):
    assert status == 0, tcuda.tcuda_last_error().decode()


def malloc(size):
    block = ctypes.c_void_p()
    ok(tcuda.tcuda_malloc(ctypes.c_size_t(size), -1, None, ctypes.byref(block)))
    return block


def free(block):
    ok(tcuda.tcuda_free(block))


def read(function, snapshot, extra):
    needed = ctypes.c_size_t()
    ok(function(snapshot, None, ctypes.c_size_t(0), ctypes.byref(needed)))
    room = ctypes.create_string_buffer(b"\xc5" * (needed.value + extra), needed.value + extra)
    ok(function(snapshot, room, ctypes.c_size_t(needed.value + extra), ctypes.byref(needed)))
    return room.raw


def take(with_history):
    """The pickle and the dictionary, which are what the JSON and the saved files are."""
    snapshot = ctypes.c_void_p()
    ok(tcuda.tcuda_memory_snapshot_create(with_history, ctypes.byref(snapshot)))
    pickled = read(tcuda.tcuda_memory_snapshot_pickle, snapshot, 0)
    text = read(tcuda.tcuda_memory_snapshot_json, snapshot, 1)
    page = read(tcuda.tcuda_memory_snapshot_html, snapshot, 1)
    assert text[-1] == 0 and page[-1] == 0
    found = pickle.loads(pickled)
    assert json.loads(text[:-1]) == json.loads(json.dumps(found)), "JSON and pickle differ"
    with tempfile.TemporaryDirectory() as directory:
        for suffix, content in (("pickle", pickled), ("json", text[:-1]), ("html", page[:-1])):
            path = os.path.join(directory, "snapshot." + suffix)
            ok(tcuda.tcuda_memory_snapshot_save(snapshot, path.encode()))
            assert open(path, "rb").read() == content, suffix
        assert sorted(os.listdir(directory)) == [
            "snapshot.html", "snapshot.json", "snapshot.pickle"]
        missing = os.path.join(directory, "none", "snapshot.json")
        assert tcuda.tcuda_memory_snapshot_save(snapshot, missing.encode()) == 27
        wrong = os.path.join(directory, "snapshot.txt")
        assert tcuda.tcuda_memory_snapshot_save(snapshot, wrong.encode()) == 1
    ok(tcuda.tcuda_memory_snapshot_destroy(snapshot))
    return pickled, found


def check_keys(found, keys, name):
    assert list(found) == list(keys) or set(found) == set(keys), (name, list(found))
    for key, type_ in keys.items():
        assert type(found[key]) is type_, (name, key, found[key])


def check(pickled, found):
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(pickled)}
    assert opcodes <= OPCODES, opcodes - OPCODES
    assert pickled[:2] == b"\x80\x04"
    for opcode, argument, _ in pickletools.genops(pickled):
        assert opcode.name != "LONG1" or -(1 << 63) <= argument < 1 << 63
    assert set(found) == {
        "segments", "device_traces", "allocator_settings", "external_annotations"}, list(found)
    for segment in found["segments"]:
        check_keys(segment, SEGMENT, "segment")
        assert segment["segment_type"] in ("small", "large")
        assert segment["segment_pool_id"] == (0, 0)
        at = segment["address"]
        for block in segment["blocks"]:
            check_keys(block, BLOCK, "block")
            assert block["address"] == at
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive")
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    for trace in found["device_traces"]:
        for entry in trace:
            oom = {("device_free" if key == "addr" else key): ENTRY[key] for key in ENTRY}
            check_keys(entry, oom if entry["action"] == "oom" else ENTRY, "entry")
            for frame in entry["frames"]:
                check_keys(frame, FRAME, "frame")
    check_keys(found["allocator_settings"], SETTINGS, "settings")
    assert found["allocator_settings"]["roundup_power2_divisions"] == {
        str(1 << n): 0 for n in range(16)}
    assert found["external_annotations"] == []


def viewer():
    """PyTorch's own _memory_viz, if there is one."""
    path = os.environ.get("TCUDA_MEMORY_VIZ")
    if path is None:
        spec = importlib.util.find_spec("torch")
        path = spec and spec.origin and os.path.join(
            os.path.dirname(spec.origin), "cuda", "_memory_viz.py")
    if not path or not os.path.exists(path):
        return None
    spec = importlib.util.spec_from_file_location("_memory_viz", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@FRAMES_FN
def another_stack_each_time(_, frames, capacity):
    KEPT.append(f"layer {len(KEPT)}".encode())
    frames[0] = Frame(KEPT[-1], b"model.py", len(KEPT))
    return 1


def many_stacks_are_shared():
    """So many that numbers of the memo take more than a byte."""
    options = Options(struct_size=ctypes.sizeof(Options), flags=1, frames=another_stack_each_time)
    ok(tcuda.tcuda_memory_record_history(2, ctypes.byref(options)))
    held = [malloc(600) for _ in range(400)]
    pickled, found = take(1)
    check(pickled, found)
    allocated = {
        entry["addr"]: entry for entry in found["device_traces"][0] if entry["action"] == "alloc"}
    assert len({entry["frames"][0]["name"] for entry in allocated.values()}) == 400
    for segment in found["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                assert block["frames"] is allocated[block["address"]]["frames"]
    for block in held:
        free(block)


def texts_are_shown():
    """What a thread says of its events, and an annotation of a block."""
    options = Options(struct_size=ctypes.sizeof(Options), flags=1)
    ok(tcuda.tcuda_memory_record_history(2, ctypes.byref(options)))
    ok(tcuda.tcuda_memory_metadata_set("{\"étape\":7}".encode()))
    first, second = malloc(600), malloc(700)
    ok(tcuda.tcuda_memory_metadata_set(None))
    ok(tcuda.tcuda_memory_annotate(first, b"saved for backward"))
    free(second)
    pickled, found = take(1)
    check(pickled, found)
    shown = [(entry["action"], entry["user_metadata"], entry["size"])
        for entry in found["device_traces"][0] if "segment" not in entry["action"]]
    assert shown == [
        ("alloc", "{\"étape\":7}", 600), ("alloc", "{\"étape\":7}", 700),
        ("annotate", "saved for backward", 600), ("free_requested", "", 700),
        ("free_completed", "", 700)], shown
    module = viewer()
    if module is not None:
        text = module.trace(found)
        # The first name is that of the segment, if it is an event.
        name = next(line for line in text.splitlines() if ":600.0B]" in line).split(" ")[0]
        # Versions before 2.15 print the whole entry.
        assert f"# annotate {name}: saved for backward\n" in text or "'annotate'" in text, text
        assert "<script" in module.trace_plot(found)
    free(first)


def settings_are_told():
    """As PyTorch tells its own: in bytes, and the text."""
    def told(text):
        ok(tcuda.tcuda_allocator_config_set(text))
        return take(0)[1]["allocator_settings"]

    before = told(b"")
    assert before["max_split_size"] == -1 and before["garbage_collection_threshold"] == 0.0
    found = told(b"max_split_size_mb:64,garbage_collection_threshold:0.5,"
                 b"roundup_power2_divisions:[2:4,>:8],pinned_num_register_threads:4,"
                 b"release_lock_on_cudamalloc:True")
    check_keys(found, SETTINGS, "settings")
    assert found["max_split_size"] == 64 * MIB, found
    assert found["garbage_collection_threshold"] == 0.5
    assert found["roundup_power2_divisions"] == {
        str(1 << n): 4 if n <= 1 else 8 for n in range(16)}, found
    assert found["pinned_num_register_threads"] == 4
    assert found["release_lock_on_cudamalloc"] and not found["pinned_use_cuda_host_register"]
    assert "max_split_size_mb:64," in found["PYTORCH_CUDA_ALLOC_CONF"]
    told(b"pinned_num_register_threads:1,release_lock_on_cudamalloc:False")


def inner(size):
    return malloc(size)


def work(stream, other, failed):
    """Allocates ever more and frees some of it, now and then of what another stream uses."""
    held, size = [], 1000
    try:
        for _ in range(5000):  # so few that the ring keeps all events
            block = ctypes.c_void_p()
            size = (size * 7 + 513) % (3 * MIB) + 1
            ok(tcuda.tcuda_malloc(ctypes.c_size_t(size), -1, stream, ctypes.byref(block)))
            if size % 3 == 0:
                ok(tcuda.tcuda_record_stream(block, other))
            held.append(block)
            if len(held) > 40:
                for _ in range(35):
                    free(held.pop(size % len(held)))
    except AssertionError as error:
        failed.append(error)
    for block in held:
        free(block)


def snapshots_agree_with_their_past():
    """Whatever threads do meanwhile: a snapshot's events lead to just the blocks that it shows."""
    streams, failed = [ctypes.c_void_p() for _ in range(4)], []
    for stream in streams:
        ok(tcuda.tcuda_stream_create(-1, 0, ctypes.byref(stream)))
    options = Options(struct_size=ctypes.sizeof(Options), flags=1)
    ok(tcuda.tcuda_memory_record_history(2, ctypes.byref(options)))
    threads = [
        threading.Thread(target=work, args=(stream, streams[3], failed), daemon=True)
        for stream in streams[:2] + streams[:1]]
    for thread in threads:
        thread.start()
    active = []  # the bytes that the last snapshot found, which the next one has as an event
    while any(thread.is_alive() for thread in threads):
        snapshot = ctypes.c_void_p()
        ok(tcuda.tcuda_memory_snapshot_create(1, ctypes.byref(snapshot)))
        found = pickle.loads(read(tcuda.tcuda_memory_snapshot_pickle, snapshot, 0))
        ok(tcuda.tcuda_memory_snapshot_destroy(snapshot))
        live, mapped = {}, 0
        for entry in found["device_traces"][0]:
            address, action = entry.get("addr"), entry["action"]
            if action == "alloc":
                assert address not in live, hex(address)
                live[address] = (entry["size"], "active_allocated")
            elif action == "free_requested":
                assert live[address] == (entry["size"], "active_allocated"), hex(address)
                live[address] = (entry["size"], "active_pending_free")
            elif action == "free_completed":
                assert live.pop(address) == (entry["size"], "active_pending_free"), hex(address)
            elif action in ("segment_map", "segment_unmap"):
                mapped += entry["size"] if action == "segment_map" else -entry["size"]
        device = [segment for segment in found["segments"] if segment["device"] == 0]
        assert live == {
            block["address"]: (block["requested_size"], block["state"])
            for segment in device for block in segment["blocks"] if block["state"] != "inactive"}
        assert mapped == sum(segment["total_size"] for segment in device)
        sizes = [entry["size"] for entry in found["device_traces"][0]
                 if entry["action"] == "snapshot"]
        assert sizes[-1:] == active
        active = [sum(segment["active_size"] for segment in device)]
    for thread in threads:
        thread.join()
    assert not failed, failed
    for stream in streams:
        ok(tcuda.tcuda_stream_destroy(stream))


def main():
    available = ctypes.c_bool()
    ok(tcuda.tcuda_is_available(ctypes.byref(available)))
    if not available:
        print("skipped: no GPU")
        sys.exit(77)
    check(*take(1))  # nothing is there yet
    settings_are_told()
    snapshots_agree_with_their_past()
    many_stacks_are_shared()
    texts_are_shown()
    ok(tcuda.tcuda_memory_empty_cache())
    options = Options(struct_size=ctypes.sizeof(Options), flags=1, frames=frames_of)
    ok(tcuda.tcuda_memory_record_history(2, ctypes.byref(options)))
    held = [inner(size) for size in (100, 70_000, 3 * MIB, 30 * MIB, 5 * MIB)]
    free(held.pop(2))
    pickled, before = take(1)
    check(pickled, before)
    trace = before["device_traces"][0]
    allocated = [entry for entry in trace if entry["action"] == "alloc"]
    assert [entry["size"] for entry in allocated] == [100, 70_000, 3 * MIB, 30 * MIB, 5 * MIB]
    for entry in allocated:
        names = [frame["name"] for frame in entry["frames"]]
        assert names[:3] == ["malloc", "inner", "<listcomp>"] or names[:2] == ["malloc", "inner"]
        assert entry["frames"][0]["filename"] == __file__
    # Shared, as PyTorch does it: a stack that occurs again is the same object.
    alive = [block for segment in before["segments"] for block in segment["blocks"]
        if block["state"] == "active_allocated"]
    assert len(alive) == 4
    stacks = [id(entry["frames"]) for entry in allocated]
    assert all(id(block["frames"]) in stacks for block in alive)
    # The sizes over time, from what the events say, end with what the segments say.
    live = {}
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    assert live == {block["address"]: block["requested_size"] for block in alive}
    assert take(0)[1]["device_traces"] == [[] for _ in before["device_traces"]]
    for block in held:
        free(block)
    _, after = take(1)
    module = viewer()
    if module is None:
        print("skipped: no torch/cuda/_memory_viz.py; the rest passed")
    else:
        for function in (module.trace_plot, module.segment_plot):
            assert "<script" in function(before)
        assert "total_reserved" in module.segsum(before)
        assert "Device 0" in module.trace(before)
        lines = module.memory(before, lambda text: text)
        assert "memory_viz.py" in lines and "stream_" in module.segments(before, lambda text: text)
        only = module.compare(before["segments"], after["segments"], lambda text: text)
        assert isinstance(only, str)
        print("_memory_viz accepts the pickle")
    ok(tcuda.tcuda_memory_record_history(0, None))
    live_handles = ctypes.c_size_t(7)
    ok(tcuda.tcuda_shutdown(ctypes.byref(live_handles)))
    assert live_handles.value == 0


main()
