"""What the page of a snapshot draws, looked at in headless Chromium.

usage: page.py LIBRARY [TOOLS_DIR]    (chromium or google-chrome from the path, or from TOOLS_DIR)
"""

import ctypes
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20
# Runs at the end of the page: what the canvases hold, as text. The first two blocks were there
# before anything was recorded; colours are read in the middle of what must be there.
PROBE = """
<script>
drawTimeline(); drawSegments();
const seen = {};
const pixel = (canvas, x, y) => {
  const ratio = window.devicePixelRatio || 1;
  const [left, top] = [Math.round(x * ratio), Math.round(y * ratio)];
  const at = canvas.getContext("2d").getImageData(left, top, 1, 1).data;
  return [...at];
};
const asPixel = colour => {
  const one = document.createElement("canvas").getContext("2d");
  one.fillStyle = colour; one.fillRect(0, 0, 1, 1);
  return [...one.getImageData(0, 0, 1, 1).data];
};
seen.tiles = [...document.querySelectorAll(".tile")].map(tile => tile.textContent);
seen.blocks = shown.large.filter(block => block.ts).map(block => {
  const t = Math.floor((block.from + block.to - 1) / 2) + .5, low = block.ys[below(block.ts, t)];
  const x = view.px(t), y = view.py(low + block.bytes / 2);
  const found = atTimeline(x, y); // between two events
  return { bytes: block.bytes, from: block.from, to: block.to, low,
    end: block.ys[block.ys.length - 1], drawn: pixel($("timeline"), x, y),
    wanted: asPixel(block.colour), isFound: found === block };
});
seen.above = pixel($("timeline"), view.px(shown.count / 2), view.py(shown.peak * 1.03));
seen.peak = shown.peak;
seen.segments = map.segments.map((segment, row) => {
  let offset = 0;
  return segment.blocks.map(block => {
    const x = map.px(offset + block.bytes / 2), y = row * ROW + 3 + 2;
    offset += block.bytes;
    return { state: block.state, bytes: block.bytes, drawn: pixel($("segments"), x, y) };
  });
});
seen.held = asPixel(css("--held")); seen.pending = asPixel(css("--pending"));
const large = shown.large.find(block => block.bytes === 30 << 20);
describe($("kept"), factsOf(large), large.stack, 10);
seen.kept = $("kept").textContent;
const box = $("timeline").getBoundingClientRect();
const first = shown.large.find(block => block.bytes === 8 << 20);
const at = { clientX: box.left + view.px(2.5), clientY: box.top + view.py(4 << 20),
  bubbles: true, pointerId: 1 };
$("timeline").dispatchEvent(new PointerEvent("pointermove", at));
const isTip = view.hover === first && $("tip").style.display === "block";
seen.tip = isTip ? $("tip").textContent : "none";
$("timeline").dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -400, cancelable: true }));
drawTimeline(); outline();
seen.zoomed = [view.x0, view.x1, shown.count, view.px(2.5) - (at.clientX - box.left)];
document.body.dataset.seen = JSON.stringify(seen);
</script>
"""


def browser(tools):
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        found = shutil.which(name)
        found = found or tools and shutil.which(name, path=os.path.join(tools, "chromium"))
        if found:
            return found
    return None


class Frame(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("filename", ctypes.c_char_p), ("line", ctypes.c_int32)]


FRAMES_FN = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(Frame), ctypes.c_size_t)


@FRAMES_FN
def frames_of(_, frames, capacity):
    frames[0] = Frame(b"attention</script><b>", b"model.py", 42)
    return 1


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("max_entries", ctypes.c_size_t),
        ("frames_for", ctypes.c_int32), ("flags", ctypes.c_uint32),
        ("skip_actions", ctypes.c_char_p), ("frames", FRAMES_FN), ("user_data", ctypes.c_void_p),
        ("destroy", ctypes.c_void_p),
    ]


def page_of(tcuda, path):
    """The page of a known program: before it 8 MiB, in it 10, 30 and 20, of which 30 is freed."""
    def ok(status):
        assert status == 0, tcuda.tcuda_last_error().decode()

    def malloc(size):
        block = ctypes.c_void_p()
        ok(tcuda.tcuda_malloc(ctypes.c_size_t(size), -1, None, ctypes.byref(block)))
        return block

    held = [malloc(8 * MIB)]
    options = Options(
        struct_size=ctypes.sizeof(Options), frames=frames_of, skip_actions=b"snapshot")
    ok(tcuda.tcuda_memory_record_history(2, ctypes.byref(options)))
    held.append(malloc(10 * MIB))
    ok(tcuda.tcuda_memory_metadata_set(b"step </script>7"))
    freed = malloc(30 * MIB)
    ok(tcuda.tcuda_memory_metadata_set(None))
    ok(tcuda.tcuda_memory_annotate(freed, b"saved for backward"))
    held.append(malloc(20 * MIB))
    ok(tcuda.tcuda_free(freed))
    held.append(malloc(5 * MIB))
    snapshot = ctypes.c_void_p()
    ok(tcuda.tcuda_memory_snapshot_create(1, ctypes.byref(snapshot)))
    ok(tcuda.tcuda_memory_snapshot_save(snapshot, path.encode()))
    ok(tcuda.tcuda_memory_snapshot_destroy(snapshot))
    for block in held:
        ok(tcuda.tcuda_free(block))
    ok(tcuda.tcuda_shutdown(None))


def look(chromium, path, directory):
    command = [
        chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--window-size=1400,1000", f"--user-data-dir={directory}/profile", "--dump-dom",
        pathlib.Path(path).as_uri(),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    found = re.search(r'data-seen="([^"]*)"', run.stdout)
    assert found, run.stderr[-2000:] + run.stdout[-2000:]
    return json.loads(html.unescape(found.group(1)))


def main():
    tcuda = ctypes.CDLL(sys.argv[1])
    tcuda.tcuda_last_error.restype = ctypes.c_char_p
    chromium = browser(sys.argv[2] if len(sys.argv) > 2 else None)
    available = ctypes.c_bool()
    assert tcuda.tcuda_is_available(ctypes.byref(available)) == 0
    if not chromium or not available:
        print("skipped: no Chromium in the path" if available else "skipped: no GPU")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        path = os.path.join(directory, "snapshot.html")
        page_of(tcuda, path)
        page = open(path).read()
        assert "</script><b>" not in page
        with open(path, "w") as file:
            file.write(page.replace("</body>", PROBE + "</body>"))
        seen = look(chromium, path, directory)
    # By hand: 8 was there; 10, 30 and 20 upon it; the 30 goes, the 20 sinks; 5 comes on top.
    blocks = sorted((block["bytes"] // MIB, block["low"] // MIB) for block in seen["blocks"])
    assert [bytes for bytes, _ in blocks] == [5, 8, 10, 20, 30], blocks
    assert dict(blocks)[8] == 0 and dict(blocks)[10] == 8 and dict(blocks)[30] == 18, blocks
    assert dict(blocks)[5] == 38, blocks
    assert [block["end"] // MIB for block in seen["blocks"] if block["bytes"] == 20 * MIB] == [18]
    assert seen["peak"] == 68 * MIB
    for block in seen["blocks"]:
        assert block["drawn"] == block["wanted"], block
        assert block["isFound"], block
    assert seen["above"][3] == 0, "nothing is drawn above the peak"
    states = [block for segment in seen["segments"] for block in segment]
    assert sum(block["bytes"] for block in states if block["state"] == 1) == 43 * MIB
    for block in states:
        assert (block["drawn"] == seen["held"]) == (block["state"] == 1), block
    assert any(block["state"] == 0 for block in states)
    tiles = dict((re.sub(r"^[\d.]+ ?[KMG]?i?B?%? ?", "", tile), tile) for tile in seen["tiles"])
    assert tiles["allocated"] == "43.0 MiBallocated", seen["tiles"]
    assert tiles["peak allocated"] == "68.0 MiBpeak allocated", seen["tiles"]
    free = sum(block["bytes"] for block in states if block["state"] == 0)
    largest = max(block["bytes"] for block in states if block["state"] == 0)
    reserved = sum(block["bytes"] for block in states)
    for name, part, whole in [("of reserved is free", free, reserved),
                              ("of free is outside the largest block", free - largest, free)]:
        assert f"{100 * part / whole:.1f} %{name}" in seen["tiles"], seen["tiles"]
    assert "attention</script><b>" in seen["kept"] and "model.py:42" in seen["kept"], seen["kept"]
    assert "30.0 MiB" in seen["kept"]
    assert "step </script>7" in seen["kept"] and "saved for backward" in seen["kept"], seen["kept"]
    assert "8.00 MiB" in seen["tip"] and "before the first event" in seen["tip"], seen["tip"]
    low, high, count, moved = seen["zoomed"]
    assert 0 < low < 2.5 < high < count and abs(moved) < 1, "the wheel zooms where it points"
    print(f"looked at {len(seen['blocks'])} blocks and {len(states)} parts of segments")


main()
