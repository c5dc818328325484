/* The script of a snapshot page. The element "data" has columns of numbers, see page.rs. */
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const ALLOC = 0, REQUESTED = 1, COMPLETED = 2, ANNOTATE = 9, EVENT = 7, MOST_SHIFTS = 2e6;
const STATES = ["free", "allocated", "freed, waits for streams"];
const HELP = {
  "of reserved is free": "memory from the driver that no block has",
  "of free is outside the largest block": "free memory that does not lie together with the largest free block",
};
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hex = value => "0x" + value.toString(16);
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit++; }
  return (bytes >= 100 || unit === 0 ? bytes.toFixed(0) : bytes.toFixed(bytes >= 10 ? 1 : 2)) + " " + units[unit];
}
function span(us) {
  return us >= 1e6 ? +(us / 1e6).toFixed(3) + " s" : us >= 1e3 ? +(us / 1e3).toFixed(3) + " ms" : us.toFixed(0) + " \u00b5s";
}
function mix(number) {
  const hash = Math.imul(number, 2654435761);
  return (hash ^ hash >>> 15) >>> 0;
}
/* A colour for each stack, so that the same code has the same colour; without a stack, for each address.
   The lightness varies between neighbours. */
function colour(block, index) {
  const hue = mix(block.stack || block.address / 512) % 360, lightness = parseInt(css("--bright"));
  return `hsl(${hue} ${css("--strong")} ${lightness - 7 + mix(index + 1) % 15}%)`;
}

/* ---- The lifetimes of blocks ---- */

function blocksOf(device) {
  const events = D.devices[device].events, count = events.length / EVENT, open = new Map(), blocks = [];
  let last = REQUESTED;
  for (let t = 0; t < count && last === REQUESTED; t++) if (events[t * EVENT] === COMPLETED) last = COMPLETED;
  const add = (t, address, bytes, stream, stack) => {
    const block = { address, bytes, stream, stack, from: t, to: count, wasThere: t < 0, requested: -1, text: 0, notes: [] };
    block.from = Math.max(t, 0);
    blocks.push(block);
    return block;
  };
  const known = new Set();
  for (let t = 0; t < count; t++) {
    const [action, address, bytes, stream, , stack, text] = events.slice(t * EVENT, t * EVENT + EVENT);
    if (action > COMPLETED && action !== ANNOTATE) continue;
    let block = open.get(address);
    if (action === ANNOTATE) {
      if (!block && !known.has(address)) open.set(address, block = add(-1, address, bytes, stream, 0));
      if (block) block.notes.push(text);
      known.add(address);
      continue;
    }
    if (action === ALLOC) {
      if (block) block.to = t;
      open.set(address, block = add(t, address, bytes, stream, stack));
      block.text = text;
    } else {
      if (!block && !known.has(address)) open.set(address, block = add(-1, address, bytes, stream, 0));
      if (block && action === REQUESTED) { block.requested = t; block.freedBy = stack; }
      if (block && action === last) { block.to = t; open.delete(address); }
    }
    known.add(address);
  }
  for (const segment of segmentsOf(device)) for (const block of segment.blocks)
    if (block.state && !open.has(block.address))
      add(-1, block.address, block.requested, segment.stream, block.stack);
  return blocks;
}

function segmentsOf(device) {
  const found = [];
  for (let s = 0; s < D.segments.length; s += 7) {
    const [owner, address, bytes, stream, small, first, count] = D.segments.slice(s, s + 7);
    if (owner !== device) continue;
    const blocks = [];
    for (let b = first * 5; b < (first + count) * 5; b += 5)
      blocks.push({ address: D.blocks[b], bytes: D.blocks[b + 1], requested: D.blocks[b + 2],
        state: D.blocks[b + 3], stack: D.blocks[b + 4] });
    found.push({ address, bytes, stream, small, blocks });
  }
  return found;
}

/* Stacks the blocks with the largest areas on each other; the other blocks are summed in a band above them. */
function layOut(blocks, count) {
  const area = block => block.bytes * (block.to - block.from + 1);
  const byArea = [...blocks].sort((a, b) => area(b) - area(a));
  for (let most = 5000; ; most = most >> 1) {
    const large = new Set(byArea.slice(0, most)), changes = [];
    for (const block of blocks) {
      changes.push([block.from, 1, block]);
      if (block.to < count) changes.push([block.to, 0, block]);
    }
    /* At equal times, frees come before allocations; within each, the order is by address. */
    changes.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2].address - b[2].address);
    const order = [], band = { ts: [0], base: [0], bytes: [0] };
    let top = 0, rest = 0, shifts = 0, peak = 0, peakAt = 0;
    for (const [t, comes, block] of changes) {
      if (!large.has(block)) rest += comes ? block.bytes : -block.bytes;
      else if (comes) {
        block.ts = [t]; block.ys = [top];
        order.push(block);
        top += block.bytes;
      } else {
        const at = order.indexOf(block);
        order.splice(at, 1);
        top -= block.bytes;
        for (let i = at; i < order.length; i++) {
          const above = order[i];
          above.ts.push(t); above.ys.push(above.ys[above.ys.length - 1] - block.bytes);
          shifts++;
        }
      }
      if (top + rest > peak) { peak = top + rest; peakAt = t; }
      band.ts.push(t); band.base.push(top); band.bytes.push(rest);
      if (shifts > MOST_SHIFTS) break;
    }
    if (shifts <= MOST_SHIFTS || most < 32)
      return { large: [...large], small: blocks.length - large.size, band, peak, peakAt, count };
  }
}

/* The last index whose element is at most `value`. */
function below(list, value) {
  let low = 0, high = list.length;
  while (low < high) { const mid = low + high >> 1; if (list[mid] <= value) low = mid + 1; else high = mid; }
  return low - 1;
}

/* ---- Drawing ---- */

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 1000;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const to = canvas.getContext("2d");
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  to.clearRect(0, 0, width, height);
  to.font = "11.5px system-ui, sans-serif";
  return [to, width, height];
}
function step(range, parts) {
  const rough = range / parts, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map(n => n * power).find(n => n >= rough) || power;
}

const LEFT = 74, BOTTOM = 26, TOP = 8, ROW = 22, LABEL = 250;
let shown, view, map, still, device = 0, byTime = false, frame = 0;

function xOf(t) { return byTime ? shown.times[Math.min(t, shown.times.length - 1)] : t; }
function tOf(x) { return byTime ? Math.max(below(shown.times, x), 0) : x; }

function drawTimeline() {
  const [to, width, height] = prepare($("timeline"), 420);
  const w = width - LEFT, h = height - BOTTOM - TOP;
  const px = x => LEFT + (x - view.x0) / (view.x1 - view.x0) * w;
  const py = y => TOP + h - (y - view.y0) / (view.y1 - view.y0) * h;
  Object.assign(view, { w, h, px, py });
  to.strokeStyle = css("--grid"); to.fillStyle = css("--faint"); to.textAlign = "right"; to.lineWidth = 1;
  let grid = 1;
  while (grid * 7 < view.y1 - view.y0) grid *= 2;
  for (let y = Math.ceil(view.y0 / grid) * grid; y <= view.y1; y += grid) {
    to.beginPath(); to.moveTo(LEFT, py(y)); to.lineTo(width, py(y)); to.stroke();
    to.fillText(size(y), LEFT - 8, py(y) + 4);
  }
  to.textAlign = "center";
  const tick = step(view.x1 - view.x0, 9);
  for (let x = Math.ceil(view.x0 / tick) * tick; x <= view.x1; x += tick)
    to.fillText(byTime ? span(x) : Math.round(x * 1e3) / 1e3, Math.min(px(x), width - 26), height - 7);
  to.save();
  to.beginPath(); to.rect(LEFT, TOP, w, h); to.clip();
  let drawn = 0;
  const edge = css("--card");
  const area = (ts, y, end, bytes) => {
    const first = Math.max(below(ts, tOf(view.x0)), 0), upper = [];
    let lastX = -1e9;
    for (let i = first; i < ts.length && xOf(ts[i]) <= view.x1; i++) {
      const x = Math.max(px(xOf(ts[i])), LEFT - 2);
      /* Points closer than half a pixel are merged. */
      if (x - lastX < .5 && upper.length) { upper[upper.length - 1][1] = i; continue; }
      upper.push([x, i]); lastX = x;
    }
    if (!upper.length) return false;
    const right = Math.max(Math.min(px(xOf(end)), width + 2), upper[upper.length - 1][0] + .5);
    to.beginPath();
    for (let k = 0; k < upper.length; k++) {
      const [x, i] = upper[k], next = k + 1 < upper.length ? upper[k + 1][0] : right, at = py(y[i] + bytes(i));
      to.lineTo(x, at); to.lineTo(next, at);
    }
    for (let k = upper.length - 1; k >= 0; k--) {
      const [x, i] = upper[k], next = k + 1 < upper.length ? upper[k + 1][0] : right, at = py(y[i]);
      to.lineTo(next, at); to.lineTo(x, at);
    }
    to.closePath(); to.fill();
    return true;
  };
  for (const block of shown.large) {
    if (!block.ts || xOf(block.to) < view.x0 || xOf(block.from) > view.x1) continue;
    to.fillStyle = block.colour;
    const wide = px(xOf(block.to)) - px(xOf(block.from)), tall = block.bytes / (view.y1 - view.y0) * h;
    if (wide < 1.5) {
      /* Too thin for steps. */
      to.fillRect(px(xOf(block.from)), py(block.ys[0] + block.bytes), Math.max(wide, .5), tall);
    } else {
      area(block.ts, block.ys, block.to, () => block.bytes);
      if (tall > 5 && wide > 8) { to.strokeStyle = edge; to.lineWidth = .7; to.stroke(); }
    }
    drawn++;
  }
  to.fillStyle = css("--band");
  const band = shown.band;
  if (shown.small) area(band.ts, band.base, shown.count, i => band.bytes[i]);
  to.restore();
  $("timeline").dataset.blocks = drawn;
  still = { view: { ...view }, byTime, area, image: document.createElement("canvas") };
  Object.assign(still.image, { width: to.canvas.width, height: to.canvas.height });
  still.image.getContext("2d").drawImage(to.canvas, 0, 0);
}

/* While the view does not change, only the outline of the block under the pointer is redrawn. */
function outline() {
  const canvas = $("timeline"), to = canvas.getContext("2d"), block = view.hover;
  to.save();
  to.setTransform(1, 0, 0, 1, 0, 0);
  to.clearRect(0, 0, canvas.width, canvas.height);
  to.drawImage(still.image, 0, 0);
  to.restore();
  if (!block || !block.ts) return;
  to.save();
  to.beginPath(); to.rect(LEFT, TOP, view.w, view.h); to.clip();
  to.fillStyle = block.colour; to.strokeStyle = css("--text"); to.lineWidth = 1.6;
  if (still.area(block.ts, block.ys, block.to, () => block.bytes)) to.stroke();
  to.restore();
}

function drawSegments() {
  const rows = map.segments.length, height = Math.min(Math.max(rows * ROW + 6, 30), 520);
  const [to, width] = prepare($("segments"), height);
  const w = width - LABEL, px = x => LABEL + (x - map.x0) / (map.x1 - map.x0) * w;
  Object.assign(map, { px, w, height });
  const hatch = document.createElement("canvas");
  hatch.width = hatch.height = 6;
  const lines = hatch.getContext("2d");
  lines.strokeStyle = css("--hatch"); lines.lineWidth = 1.2;
  lines.beginPath(); lines.moveTo(-1, 7); lines.lineTo(7, -1); lines.stroke();
  const pattern = to.createPattern(hatch, "repeat"), colours = [css("--free"), css("--held"), css("--pending")];
  let blocks = 0, from = Math.max(Math.floor(map.y / ROW), 0);
  for (let row = from; row < rows && row * ROW - map.y < height; row++) {
    const segment = map.segments[row], y = row * ROW - map.y + 3;
    to.fillStyle = css("--text"); to.textAlign = "left";
    to.fillText(`${hex(segment.address)}`, 0, y + 12);
    to.fillStyle = css("--faint"); to.textAlign = "right";
    to.fillText(`${segment.small ? "small" : "large"}  ${size(segment.bytes)}`, LABEL - 12, y + 12);
    to.save();
    to.beginPath(); to.rect(LABEL, y, w, ROW - 5); to.clip();
    let offset = 0;
    for (const block of segment.blocks) {
      const x = px(offset), end = px(offset + block.bytes);
      offset += block.bytes;
      if (end < LABEL || x > width) continue;
      const wide = Math.max(end - x - (end - x > 3 ? 1 : 0), .6);
      to.fillStyle = colours[block.state]; to.fillRect(x, y, wide, ROW - 5);
      if (!block.state) { to.fillStyle = pattern; to.fillRect(x, y, wide, ROW - 5); }
      if (block === map.hover) { to.strokeStyle = css("--text"); to.lineWidth = 2; to.strokeRect(x, y, wide, ROW - 5); }
      blocks++;
    }
    to.restore();
  }
  Object.assign($("segments").dataset, { rows, blocks });
}

function redraw() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    const same = still && still.byTime === byTime && still.image.width === $("timeline").width &&
      ["x0", "x1", "y0", "y1", "of"].every(key => still.view[key] === view[key]);
    if (shown.count) { if (!same) drawTimeline(); outline(); }
    drawSegments();
  });
}

/* ---- Descriptions ---- */

function node(name, text) { const made = document.createElement(name); made.textContent = text; return made; }
function describe(to, facts, stack, most) {
  to.replaceChildren();
  const list = to.appendChild(document.createElement("dl"));
  for (const [term, text] of facts) if (text !== undefined) list.append(node("dt", term), node("dd", text));
  const ids = D.stacks[stack - 1] || [];
  if (!ids.length) return;
  const frames = to.appendChild(document.createElement("ol"));
  for (const id of ids.slice(0, most)) {
    const [name, file, line] = D.frames[id - 1];
    frames.append(node("li", name + (file ? "  " + file + (line ? ":" + line : "") : "")));
  }
  if (ids.length > most) frames.append(node("li", `${ids.length - most} more`));
}
function textOf(id) { return id ? D.frames[D.stacks[id - 1][0] - 1][0] : undefined; }
function when(t) { return `event ${t}, ${span(shown.times[Math.min(t, shown.count - 1)])}`; }
function factsOf(block) {
  if (block.state !== undefined) return [["state", STATES[block.state]], ["size", size(block.bytes) + ` (${block.bytes})`],
    ["asked for", block.state ? size(block.requested) + ` (${block.requested})` : undefined],
    ["address", hex(block.address)], ["stream", hex(block.owner.stream)]];
  return [["size", size(block.bytes) + ` (${block.bytes})`], ["address", hex(block.address)], ["stream", hex(block.stream)],
    ["allocated", block.wasThere ? "before the first event" : when(block.from)],
    ["freed", block.requested >= 0 ? when(block.requested) : undefined],
    ["metadata", textOf(block.text)], ...block.notes.map(text => ["annotation", textOf(text)]),
    ["done", block.to < shown.count ? when(block.to) : "alive at the end"]];
}

function atTimeline(x, y) {
  const at = view.x0 + (x - LEFT) / view.w * (view.x1 - view.x0), t = tOf(at);
  const bytes = view.y0 + (TOP + view.h - y) / view.h * (view.y1 - view.y0);
  return shown.large.find(block => {
    if (!block.ts || block.from > t || block.to <= t) return false;
    const low = block.ys[below(block.ts, t)];
    return bytes >= low && bytes < low + block.bytes;
  });
}
function atSegments(x, y) {
  const segment = map.segments[Math.floor((y + map.y) / ROW)];
  if (!segment || x < LABEL) return undefined;
  let offset = map.x0 + (x - LABEL) / map.w * (map.x1 - map.x0);
  const block = segment.blocks.find(block => (offset -= block.bytes) < 0);
  if (block) block.owner = segment;
  return block;
}

function interact(canvas, area, find, left, zoomsY) {
  let drag = null;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const range = area(), factor = Math.exp(event.deltaY * .0016);
    const at = range.x0 + (event.offsetX - left) / range.w * (range.x1 - range.x0);
    range.x0 = at + (range.x0 - at) * factor; range.x1 = at + (range.x1 - at) * factor;
    if (zoomsY && event.shiftKey) {
      const y = range.y0 + (TOP + range.h - event.offsetY) / range.h * (range.y1 - range.y0);
      range.y0 = y + (range.y0 - y) * factor; range.y1 = y + (range.y1 - y) * factor;
    }
    redraw();
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    const range = area();
    drag = { ...range, row: range.y, x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    const range = area(), tip = $("tip");
    if (drag) {
      const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
      drag.moved = drag.moved || Math.abs(dx) + Math.abs(dy) > 3;
      const shift = dx / range.w * (drag.x1 - drag.x0);
      range.x0 = drag.x0 - shift; range.x1 = drag.x1 - shift;
      if (zoomsY) {
        const rise = dy / range.h * (drag.y1 - drag.y0);
        range.y0 = drag.y0 + rise; range.y1 = drag.y1 + rise;
      } else range.y = Math.max(Math.min(drag.row - dy, range.rows * ROW - range.height + 6), 0);
    } else {
      range.hover = find(event.offsetX, event.offsetY);
      tip.style.display = range.hover ? "block" : "none";
      if (range.hover) {
        describe(tip, factsOf(range.hover), range.hover.stack, 12);
        tip.style.left = Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 12) + "px";
        tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 12) + "px";
      }
    }
    redraw();
  });
  canvas.addEventListener("pointerup", event => {
    const block = drag && !drag.moved && find(event.offsetX, event.offsetY);
    drag = null;
    if (block) describe($("kept"), factsOf(block), block.stack, 200), $("kept").className = "";
  });
  canvas.addEventListener("pointerleave", () => { area().hover = undefined; $("tip").style.display = "none"; redraw(); });
  canvas.addEventListener("dblclick", () => { reset(); redraw(); });
}

/* ---- The page ---- */

function reset() {
  const end = shown.count ? xOf(shown.count) : 1;
  view = { of: shown, x0: 0, x1: Math.max(end, 1), y0: 0, y1: Math.max(shown.peak, 1) * 1.05 };
  const longest = Math.max(1, ...map.segments.map(segment => segment.bytes));
  Object.assign(map, { x0: 0, x1: longest, y: 0, rows: map.segments.length });
}

function show(index) {
  device = index;
  const past = D.devices[index] || { events: [], dropped: 0, allocated_peak: 0, reserved_peak: 0 };
  const segments = segmentsOf(index), count = past.events.length / EVENT;
  const blocks = count ? blocksOf(index) : [];
  shown = layOut(blocks, count);
  shown.large.forEach((block, index) => { block.colour = colour(block, index); });
  shown.times = [];
  for (let t = 0; t < count; t++)
    shown.times.push(Math.max(past.events[t * EVENT + 4] - past.events[4], shown.times[t - 1] || 0));
  if (count) shown.times.push(shown.times[count - 1]);
  map = { segments };
  $("band").replaceChildren();
  if (shown.small) {
    const mark = $("band").appendChild(document.createElement("i"));
    mark.style.background = "var(--band)";
    $("band").append(`${shown.small} small or short-lived blocks, together`);
  }
  reset();
  const sum = pick => segments.reduce((total, segment) => total + segment.blocks.reduce((n, block) => n + pick(block), 0), 0);
  const held = sum(block => block.state === 1 ? block.bytes : 0), free = sum(block => block.state ? 0 : block.bytes);
  const reserved = sum(block => block.bytes), waste = sum(block => block.state ? block.bytes - block.requested : 0);
  const largest = Math.max(0, ...segments.flatMap(segment => segment.blocks.map(block => block.state ? 0 : block.bytes)));
  const share = (part, whole) => (whole ? 100 * part / whole : 0).toFixed(1) + " %";
  const tiles = [["allocated", size(held)], ["reserved", size(reserved)], ["peak allocated", size(past.allocated_peak)],
    ["peak reserved", size(past.reserved_peak)], ["reserved and free", size(free)],
    ["of reserved is free", share(free, reserved)], ["of free is outside the largest block", share(free - largest, free)],
    ["lost to rounding", size(waste)], ["events" + (past.dropped ? `, ${past.dropped} dropped` : ""), count]];
  $("tiles").replaceChildren(...tiles.map(([name, value]) => {
    const tile = document.createElement("div");
    tile.className = "tile";
    tile.title = HELP[name] || "";
    tile.append(node("b", value), node("span", name));
    return tile;
  }));
  $("timeline").style.display = count ? "" : "none";
  $("no-history").textContent = count ? "" : "No history: nothing was recorded before this snapshot was taken.";
  $("segments").style.display = segments.length ? "" : "none";
  $("no-segments").textContent = segments.length ? "" : "This device has no memory from the driver.";
  for (const button of $("devices").children) button.setAttribute("aria-pressed", +button.dataset.device === index);
  setAxis(byTime);
}
function setAxis(time) {
  byTime = time;
  $("by-time").setAttribute("aria-pressed", time); $("by-event").setAttribute("aria-pressed", !time);
  reset(); redraw();
}

D.devices.forEach((_, index) => {
  const button = $("devices").appendChild(node("button", "device " + index));
  button.dataset.device = index;
  button.onclick = () => show(index);
});
$("by-time").onclick = () => setAxis(true);
$("by-event").onclick = () => setAxis(false);
interact($("timeline"), () => view, atTimeline, LEFT, true);
interact($("segments"), () => map, atSegments, LABEL, false);
addEventListener("resize", () => { still = undefined; redraw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(device));
const busiest = D.devices.reduce((best, past, index) => past.events.length > D.devices[best].events.length ? index : best, 0);
show(busiest);
