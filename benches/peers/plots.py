"""Plots as SVG, by hand: time by number of threads, and memory over time."""

import math
import os
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 150, 44, 52
COLOURS = {"tcuda": "#c0392b", "torch": "#e08e0b", "torch_expandable": "#8e6bb0",
           "torch_async": "#b8860b", "malloc_async": "#2e7d32", "cub": "#1f77b4",
           "rmm_pool": "#17a2a2", "rmm_arena": "#7f8c8d", "rmm_async": "#5d6d7e",
           "malloc": "#000000", "allocated": "#9aa0a6"}
SHOWN_OVER_TIME = ("tcuda", "torch", "torch_expandable", "malloc_async")


class Plot:
    """Axes, lines and their names at the right edge. `x` and `y` are (low, high)."""

    def __init__(self, title, x_label, y_label, x, y, log_x=False, log_y=False):
        self.x, self.y, self.log_x, self.log_y = x, y, log_x, log_y
        self.names = []
        middle = (LEFT + WIDTH - RIGHT) / 2
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
            f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>',
            f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
            f'text-anchor="middle">{escape(y_label)}</text>']

    @staticmethod
    def _share(value, bounds, log):
        low, high = (math.log(b) for b in bounds) if log else bounds
        value = math.log(value) if log else value
        return (value - low) / (high - low) if high > low else 0.0

    def _at(self, x, y):
        across = self._share(x, self.x, self.log_x) * (WIDTH - LEFT - RIGHT)
        up = self._share(y, self.y, self.log_y) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across, HEIGHT - BOTTOM - up

    def ticks(self, x_ticks, y_ticks):
        for value, label in y_ticks:
            _, y = self._at(self.x[0], value)
            self.parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e3e3e3"/>')
            self.parts.append(
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        for value, label in x_ticks:
            x, _ = self._at(value, self.y[0])
            self.parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" '
                              f'text-anchor="middle">{label}</text>')
        self.parts.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" '
                          'fill="none" stroke="#444444"/>')

    def line(self, name, points, dots=False):
        colour = COLOURS.get(name, "#555555")
        width = 2.5 if name == "tcuda" else 1.5
        places = [self._at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                          f'stroke-width="{width}"/>')
        if dots:
            self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
                           for x, y in places]
        self.names.append((places[-1][1], name, colour))

    def write(self, path):
        # Names stand beside the ends of their lines, and not on one another.
        last = TOP - 16.0
        for y, name, colour in sorted(self.names):
            last = max(y + 4, last + 15)
            self.parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{last:.1f}" '
                              f'fill="{colour}">{escape(name.replace("_", " "))}</text>')
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([*self.parts, "</svg>"]) + "\n")


def decades(low, high):
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return (10.0 ** first, 10.0 ** max(last, first + 1))


def by_threads(path, title, names, order):
    """`names` are rows "threads_4" with the nanoseconds of each peer."""
    points = {}
    for name, figures in names.items():
        for peer, value in figures.get("ns", {}).items():
            points.setdefault(peer, []).append((int(name.rpartition("_")[2]), value))
    if not points:
        return False
    counts = sorted({x for line in points.values() for x, _ in line})
    low, high = decades(*(f(y for line in points.values() for _, y in line) for f in (min, max)))
    plot = Plot(title, "threads", "ns a pair of one thread", (counts[0], counts[-1]), (low, high),
                log_x=True, log_y=True)
    exponents = range(round(math.log10(low)), round(math.log10(high)) + 1)
    plot.ticks([(count, count) for count in counts],
               [(10.0 ** e, f"{10 ** e:,}") for e in exponents])
    for peer in order:
        if peer in points:
            plot.line(peer, sorted(points[peer]), dots=True)
    plot.write(path)
    return True


def over_time(path, title, peers):
    """`peers` have lists "reserved" and "allocated" of a cold pass and a warm one."""
    shown = [peer for peer in SHOWN_OVER_TIME if peer in peers]
    if not shown:
        return False
    lines = {peer: peers[peer]["reserved"] for peer in shown}
    lines["allocated"] = peers[shown[0]]["allocated"]
    gib = 1 << 30
    high = max(max(values) for values in lines.values()) / gib
    step = 10 ** math.floor(math.log10(high / 4 or 1))
    step = next(step * factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 5)
    top = math.ceil(high / step) * step
    plot = Plot(title, "events, of two passes", "GiB", (0, 2), (0, top))
    y_ticks = [(i * step, f"{i * step:g}") for i in range(round(top / step) + 1)]
    plot.ticks([(0, "0"), (1, "1 pass"), (2, "2 passes")], y_ticks)
    for name in ("allocated", *shown[::-1]):
        values = lines[name]
        plot.line(name, [(2 * i / max(len(values) - 1, 1), value / gib)
                         for i, value in enumerate(values)])
    plot.write(path)
    return True


def draw(folder, medians, memory, order):
    """Draws what there is; gives the paths."""
    drawn = []
    for kind, title in (("one_stream", "Threads that share a stream"),
                        ("own_stream", "Threads with a stream each")):
        path = os.path.join(folder, f"threads_{kind}.svg")
        if by_threads(path, title, medians.get(f"threads_{kind}", {}), order):
            drawn.append(path)
    for trace, peers in memory.items():
        path = os.path.join(folder, f"memory_{trace}.svg")
        if over_time(path, f"{trace}: reserved and allocated", peers):
            drawn.append(path)
    return drawn
