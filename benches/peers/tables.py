"""Medians over rounds, and tables of them in Markdown: a row for each thing measured, a column for
each peer, and how many times better tcuda is than the best of them."""

import statistics

OURS = "tcuda"
# What the workload takes at least (floor.cpp): no peers.
FLOORS = ("floor", "floor_whole")
TITLES = {
    "pairs": "One block is allocated and freed",
    "churn": "Random blocks, 512 B to 16 MiB, one is freed and one allocated",
    "latency": "Single calls among 1,000 live blocks",
    "random": "RMM's RANDOM_ALLOCATIONS_BENCH, an operation",
    "step": "512 blocks are allocated, and freed in the opposite order, a pair",
    "recorded": "Allocate, use on two other streams (record_stream, or an event to wait for), free",
    "threads_one_stream": "Threads on one stream, a pair of a thread",
    "threads_own_stream": "Threads with a stream each, a pair of a thread",
    "threads_short_peaks": "The same where peaks may be short (exact_peaks:False)",
    "handoff": "Allocated on one thread, freed on another",
    "traces": "Traces of real programs",
    "rotation": "Steps on streams in rotation, the host four steps ahead",
    "regrow": "Everything given back and got again",
    "limits": "The smallest limit at which a trace completes six times",
    "events": "Streams and events",
    "driver": "What CUDA's driver takes for memory, a handle or block",
    "start": "A fresh process up to its first device memory",
}
FIGURES = {
    "ns": "ns", "us": "us", "ms": "ms", "again_ms": "ms, once more",
    "cold_ns": "ns an event, cold", "cold_driver_ns": "of them in the driver's calls for memory",
    "warm_ns": "ns an event, warm",
    "loop_ns": "ns an event that are the bench's own: the same loop, and nothing is allocated",
    "reserved_over_allocated": "peak reserved over peak allocated",
    "limit_over_allocated": "limit over peak allocated",
    "lost_ms": "ms that a repeated pass takes longer at a limit of 1.05",
    "calls_limited": "calls of the driver at a limit of 1.05, five repeated passes together",
    "calls_cold": "calls of the driver, cold",
    "calls_warm": "calls of the driver, eight repeated passes together",
}
# Of these, which peer needs least says nothing, or it is no peer's at all.
NOT_COMPARED = ("calls_cold", "calls_warm", "calls_limited", "lost_ms", "loop_ns")
NO_RATIO = ("queue_alone", "clock_subtracted")


def medians(samples):
    return {group: {name: {figure: {peer: statistics.median(values)
                                    for peer, values in peers.items()}
                           for figure, peers in figures.items()}
                    for name, figures in names.items()}
            for group, names in samples.items()}


def number(figure, value):
    if figure.endswith("over_allocated"):
        return f"{value:.4f}"
    if figure.startswith("calls"):
        return f"{value:.0f}"
    return f"{value:.1f}" if value < 10000 else f"{value:,.0f}"


def ratio(peers):
    """The best peer over ours: above 1, tcuda needs less."""
    others = [value for peer, value in peers.items() if peer != OURS and peer not in FLOORS]
    if OURS not in peers or not others or not peers[OURS]:
        return ""
    best = min(others) / peers[OURS]
    return f"{best:.3f}x" if 0.9 < best < 1.1 else f"{best:.2f}x"


def table(names, figure, order):
    """Rows of cells; the first is the header."""
    present = {peer for figures in names.values() for peer in figures.get(figure, ())}
    columns = [peer for peer in order if peer in present]
    columns += sorted(present - set(columns))
    compares = figure not in NOT_COMPARED and len(columns) > 1 and OURS in columns
    rows = [["", *columns, *(["best peer / tcuda"] if compares else [])]]
    for name, figures in names.items():
        peers = figures.get(figure, {})
        if not peers:
            continue
        row = [name, *(number(figure, peers[c]) if c in peers else "" for c in columns)]
        if compares:
            row.append("" if name in NO_RATIO else ratio(peers))
        rows.append(row)
    return rows


def differences(names):
    """Traces whose peaks of allocated or requested bytes are not PyTorch's, to the byte: with
    expandable segments, where it too counts nothing but the rounding to 512 bytes."""
    found = []
    for name, figures in names.items():
        for figure in ("peak_allocated", "peak_requested"):
            peers = figures.get(figure, {})
            ours, theirs = peers.get(OURS), peers.get("torch_expandable")
            if None not in (ours, theirs) and ours != theirs:
                found.append(f"{name}: {figure}: {ours:.0f}, torch_expandable {theirs:.0f}")
    return found


def markdown(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        lines.append("| " + " | ".join(cells) + " |")
        if index == 0:
            lines.append("|" + "|".join("-" * (width + 1) + ("-" if i == 0 else ":")
                                        for i, width in enumerate(widths)) + "|")
    return lines


def text(machine, rounds, figures_by_group, left_out, order):
    lines = [", ".join(part for part in (
        machine["gpu"], machine["driver"] and f"driver {machine['driver']}", machine["cpu"],
        f"{machine['cores']} cores", machine["date"], f"medians of {rounds}") if part)]
    for group, title in TITLES.items():
        names = figures_by_group.get(group, {})
        for figure, unit in FIGURES.items():
            rows = table(names, figure, order)
            if len(rows) > 1:
                lines += ["", f"**{title}** ({unit})", "", *markdown(rows)]
        halved = max((peer_value for figures in names.values()
                      for peer_value in figures.get("halved", {}).values()), default=0)
        if halved:
            lines += ["", f"Sizes were divided by {2 ** int(halved)}, to fit into the device."]
    wrong = differences(figures_by_group.get("traces", {}))
    if wrong:
        lines += ["", "Peaks that are not PyTorch's:", *(f"- {line}" for line in wrong)]
    if left_out:
        lines += ["", "Left out:"]
        lines += [f"- {peer}: {group}: {why}" for peer, groups in left_out.items()
                  for group, why in groups.items()]
    return "\n".join(lines) + "\n"
