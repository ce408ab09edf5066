"""Generate the charts and tables of docs/speed.md, and the times in README.md, from the committed records.

./dev pages        # bring docs/speed.md, docs/assets and README.md up to date with benchmarks/results
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bar_chart import Panel, bars
from grid_chart import Dot, dots
from marked import replaced

from stablessm.bench.contest import GRAPH, OURS, PHASES, is_peer
from stablessm.bench.table import milliseconds, times

Record: TypeAlias = Mapping[str, Any]
Row: TypeAlias = Mapping[str, Any]

DEVICES = ("cuda", "cpu")
_FACTS = {"size": "size", "dtype": "dtype", "decay": "decay per"}


def load(root: Path, suite: str) -> dict[str, Record]:
    """Return the committed records of a suite by device."""
    paths = {device: root / "benchmarks" / "results" / f"{suite}-{device}.json" for device in DEVICES}
    return {device: json.loads(path.read_text(encoding="utf-8")) for device, path in paths.items() if path.exists()}


def contest_chart(record: Record) -> str:
    """Return a chart of forward+backward times over the floor, one panel per dtype and kind of decay."""
    panels: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in record["rows"]:
        if row["phase"] == "forward+backward":
            title = f"{row['dtype']}, decay per {row['decay']}" if "decay" in row else row["dtype"]
            panels.setdefault(title, {}).setdefault(row["size"], {})[row["contender"]] = row.get(
                "queued_times_floor", row["times_floor"]
            )
    queued = " queued," if _queued(record) else ""
    title = f"Forward and backward,{queued} × floor (1 is the speed of a copy), {record['machine']['device']}"
    return bars(title, [Panel(name, groups) for name, groups in panels.items()])


def contest_table(record: Record) -> str:
    """Return a table of every case: our time and the best peer's, forward and forward+backward."""
    facts = {key: name for key, name in _FACTS.items() if key in record["rows"][0]}
    cases: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in record["rows"]:
        case = cases.setdefault(tuple(str(row[key]) for key in facts), {})
        case.setdefault(row["phase"], []).append(row)
    ways = _ways(record)
    columns = ("ms", "× floor", "vs best peer")
    timed = ["timed"] if len(ways) > 1 else []
    head = ["case", *timed, *(f"{phase}, {name}" for phase in ("forward", "both") for name in columns)]
    lines = [
        [
            _case(key),
            *([way] if timed else []),
            *(cell for phase in PHASES for cell in _case_cells(phases[phase], *timing)),
        ]
        for key, phases in cases.items()
        for way, timing in ways.items()
    ]
    said = []
    for way, (ours, prefix) in ways.items():
        ahead = [row.get(f"{prefix}best_peer_over_this") for row in record["rows"] if row["contender"] == ours]
        behind = sum(ratio < 1 for ratio in ahead if ratio)
        compared = len([ratio for ratio in ahead if ratio])
        said.append(f"in {behind} of {compared} comparisons{f' of {way} times' if way else ''}")
    behind_in = f"stablessm is slower than the best peer {', '.join(said)}."
    return "\n\n".join([_markdown(head, lines), behind_in, *_without_time(record, tuple(facts))])


def grid_chart(record: Record) -> str:
    """Return a chart of the multiple of the floor at every shape, one panel per phase."""
    panels: dict[str, list[Dot]] = {}
    for row in record["rows"]:
        if row["contender"] == OURS and row["ms"] is not None:
            prefix = "queued_" if "queued_times_floor" in row else ""
            batch, steps, channels = map(int, row["size"].split("x"))
            behind = (row[f"{prefix}best_peer_over_this"] or 1) < 1
            dot = Dot((batch, steps, channels), row[f"{prefix}times_floor"], behind)
            panels.setdefault(row["phase"], []).append(dot)
    title = f"{record['shapes']} random shapes, × floor (a ring: a peer is faster), {record['machine']['device']}"
    return dots(title, panels)


def grid_table(record: Record) -> str:
    """Return the distribution of the multiple of the floor by traffic, and the shapes where a peer is faster."""
    lines, said = [], []
    for name, found in record["summary"].items():
        phase, mark, what = name.rpartition(": ")
        if what == "times floor":
            numbers = (times(found[key]) for key in ("median", "in_90_percent", "largest"))
            lines.append([phase, str(found["shapes"]), *numbers])
        elif what == "least ahead of best peer":
            said.append(f"{phase}: at least {times(found)} times as fast as the best peer")
        elif mark and what == "behind a peer" and found:
            shapes = ", ".join(f"{size.replace('x', '×')} ({times(ratio)})" for size, ratio in found.items())
            said.append(f"{phase}: slower than a peer at {shapes}")
    head = ["phase, traffic of a forward pass", "shapes", "× floor, median", "90 % at most", "largest"]
    return "\n\n".join([_markdown(head, lines), *([f"{'; '.join(said)}."] if said else [])])


def accuracy_table(record: Record) -> str:
    """Return a table of errors, one row per length, dtype and kind of decay."""
    cases: dict[tuple[str, ...], list[Row]] = {}
    for row in record["rows"]:
        cases.setdefault((f"{row['steps']:,}", row["dtype"], row["decay"]), []).append(row)
    what = list(dict.fromkeys(row["what"] for row in record["rows"]))
    lines = []
    for key, rows in cases.items():
        errors = {row["what"]: f"{row['relative_error']:.1e}" for row in rows}
        bits = "the same" if all(row["same_bits"] for row in rows) else "different"
        lines.append([*key, *(errors.get(name, "") for name in what), bits])
    return _markdown(["steps", "dtype", "decay per", *what, "bits of two runs"], lines)


def stream_table(record: Record) -> str:
    """Return a table of every layer and width: the streamer and the best peer."""
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in record["rows"]:
        cases.setdefault((row["layer"], str(row["width"])), []).append(row)
    lines = []
    for key, rows in cases.items():
        timed = [row for row in rows if row["median_us"] is not None]
        best = min((row for row in timed if not row["contender"].startswith("Streamer")), key=_median, default=None)
        for row in timed:
            if row["contender"] == "Streamer" or row is best:
                tail = (f"{row[name]:.1f}" for name in ("median_us", "p99_us", "p99_9_us", "max_us"))
                lines.append([*key, row["contender"], *tail, times(row["best_peer_over_this"])])
    return _markdown(["layer", "width", "", "median µs", "p99", "p99.9", "longest", "vs peer"], lines)


def language_chart(record: Record) -> str:
    """Return a chart of the time per generated token by context, and of training throughput by batch."""
    generation: dict[str, dict[str, float | None]] = {}
    training: dict[str, dict[str, float | None]] = {}
    for row in record["rows"]:
        if row["what"] == "generation":
            generation.setdefault(f"context {row['context']:,}", {})[row["contender"]] = row.get("ms")
        else:
            flops = row.get("model_flops")
            training.setdefault(f"batch {row['batch']}", {})[row["contender"]] = flops and flops / 1e12
    named = {"generation, ms per token": generation, "training, TFLOP/s for the parameters": training}
    panels = [Panel(title, groups) for title, groups in named.items() if groups]
    return bars(f"Language models, {record['machine']['device']}", panels)


def language_table(record: Record) -> str:
    """Return a table of training and a table of generation, one row per contender and case."""
    lines: dict[str, list[list[str]]] = {"training": [], "generation": []}
    for row in record["rows"]:
        size = f"{row['parameters'] / 1e6:.1f} M"
        time = milliseconds(row["ms"], row["quartiles_ms"]) if "ms" in row else f"none: {row['left_out']}"
        if row["what"] == "training":
            flops = row.get("model_flops")
            rates = [f"{row['tokens_per_second']:,.0f}", f"{flops / 1e12:.3g}"] if flops else ["", ""]
            lines["training"].append([row["contender"], size, f"{row['batch']} × {row['length']}", time, *rates])
        else:
            state = f"{row['state_megabytes']:.2f}" if "state_megabytes" in row else ""
            lines["generation"].append([row["contender"], size, f"{row['context']:,}", time, state])
    heads = {
        "training": ["training", "parameters", "batch × length", "ms per step", "tokens/s", "TFLOP/s"],
        "generation": ["generation", "parameters", "context", "ms per token", "state, MB"],
    }
    return "\n\n".join(_markdown(heads[what], found) for what, found in lines.items() if found)


def generation_table(record: Record) -> str:
    """Return a table of times per generated token, one row per loop, dtype, batch and way to draw."""
    size, rate = record["summary"]["parameters"], record["summary"]["copy_gigabytes_per_second"]
    lines = []
    for row in record["rows"]:
        read = (2 if row["dtype"] == "bfloat16" else 4) * size / rate / 1e6
        took = [milliseconds(row["ms"], row["quartiles_ms"]), times(row["ms"] / read)]
        rest = [row["dtype"], str(row["batch"]), row["draw"], *took, f"{row['tokens_per_second']:,.0f}"]
        lines.append([f"`{row['loop']}`", *rest])
    said = (
        f"{size / 1e6:.1f} million parameters. Reading the weights takes their size divided by the bandwidth of a copy."
    )
    head = ["loop", "dtype", "batch", "draw", "ms per step", "× reading the weights", "tokens/s"]
    return "\n\n".join([said, _markdown(head, lines)])


def calls_table(record: Record) -> str:
    """Return a table of times per call, one row per layer and shape."""
    lines = []
    for row in record["rows"]:
        low, high = row["quartiles_us"]
        shape = "×".join(map(str, row["shape"])) if isinstance(row["shape"], list) else f"batch {row['shape']}"
        lines.append([row["what"], row["layer"], shape, f"{row['us']:.0f} ({low:.0f} to {high:.0f})"])
    return _markdown(["call", "layer", "input", "µs"], lines)


def first_call_table(record: Record) -> str:
    """Return a table of the times of first calls with empty caches."""
    lines = [
        [row["case"], row["first"].replace("_", r"\_"), f"{row['first_s']:.2f}", f"{1e3 * row['second_s']:.1f}"]
        for row in record["rows"]
    ]
    return _markdown(["operation", "first call", "first call, s", "second call, ms"], lines)


def section(root: Path) -> str:
    """Return the text between the two marks of the page."""
    parts = []
    for suite, (title, table) in _SECTIONS.items():
        for device, record in load(root, suite).items():
            where = f"{title} ({'GPU' if device == 'cuda' else 'CPU'})"
            parts += [f"### {where}\n", _about(record)]
            if table in _CHARTS:
                parts.append(f"![{where}: {_CHARTS[table][1]}](assets/{suite}-{device}.svg)\n")
            parts.append(table(record) + "\n")
    return "\n".join(parts)


def charts(root: Path) -> dict[Path, str]:
    """Return every chart by its file."""
    return {
        root / "docs" / "assets" / f"{suite}-{device}.svg": _CHARTS[table][0](record)
        for suite, (_, table) in _SECTIONS.items()
        if table in _CHARTS
        for device, record in load(root, suite).items()
    }


def updated(page: str, root: Path) -> str:
    """Return the page with new text between its two marks."""
    return replaced(page, "records", f"\n\n{section(root)}\n")


def updated_readme(readme: str, root: Path) -> str:
    """Return the README with new times between its two marks."""
    return replaced(readme, "speed", f"\n{readme_times(root)}\n")


def readme_times(root: Path) -> str:
    """Return three comparisons with JAX in a sentence each: two that we win and one that we lost at first."""
    cpu, large, small = (
        load(root, suite)[device] for suite, device in (("scan", "cpu"), ("scan", "cuda"), ("scan-small", "cuda"))
    )
    return (
        "Time of a forward and backward pass of the scan in float32, with a separate decay for each step, from "
        "committed records. Sizes are batch × steps × channels. On "
        f"{cpu['machine']['threads']} CPU cores at 8×1024×256, {_against(cpu, '8x1024x256', 'lax.scan')}. On an "
        f"{large['machine']['device'].removeprefix('NVIDIA ')}, one call at a time from Python, at 8×2048×2048, "
        f"{_against(large, '8x2048x2048', 'associative_scan')}; at the small size 8×1024×256, "
        f"{_against(small, '8x1024x256', 'associative_scan')}."
    )


def _against(record: Record, size: str, peer: str) -> str:
    case = {"size": size, "dtype": "float32", "decay": "step", "phase": "forward+backward"}
    taken = {row["contender"]: row["ms"] for row in record["rows"] if case.items() <= row.items()}
    return f"{taken[OURS]:.2f} ms compared with {taken[f'jax {peer}']:.2f} ms for JAX's `{peer}`"


def main(root: Path = Path()) -> None:
    """Write the page, the charts and the times in the README."""
    for path, new in ((root / "docs" / "speed.md", updated), (root / "README.md", updated_readme)):
        path.write_text(new(path.read_text(encoding="utf-8"), root), encoding="utf-8")
    for path, chart in charts(root).items():
        path.write_text(chart, encoding="utf-8")


def _about(record: Record) -> str:
    machine, summary = record["machine"], record["summary"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] != 1)}"
    facts = [f"{machine['device']}, {threads}; {versions}; {record['date']}"]
    if "copy_gigabytes_per_second" in summary:
        facts.append(f"copy bandwidth {summary['copy_gigabytes_per_second']:.0f} GB/s")
    for name, rate in summary.items():
        if name.startswith("matmul_"):
            facts.append(f"{name.split('_')[1]} matrix product {rate:.3g} TFLOP/s")
    missing: dict[str, list[str]] = {}
    for name, why in record.get("peers", {}).items():
        if not why[0].isdigit():
            missing.setdefault(why.split(":")[0], []).append(name)
    facts += [f"{why} and therefore not measured: {', '.join(names)}" for why, names in missing.items()]
    facts += [] if record["complete"] else ["the run was interrupted"]
    return f"Measured by `{record['command']}` on {'; '.join(facts)}.\n"


def _without_time(record: Record, facts: Sequence[str]) -> list[str]:
    """Return one sentence per reason for a missing time, with the cases."""
    cases: dict[tuple[str, ...], list[str]] = {}
    for row in record["rows"]:
        if row["note"]:
            case = " ".join(str(row[key]) for key in facts)
            cases.setdefault((row["contender"], row["phase"], row["note"]), []).append(case)
    return [
        f"No time is reported for {contender}, {phase} ({_reason(note)}): {', '.join(found)}."
        for (contender, phase, note), found in cases.items()
    ]


def _reason(note: str) -> str:
    return "its result was wrong" if note == "wrong" else note


def _queued(record: Record) -> bool:
    return any(row.get("queued_ms") for row in record["rows"])


def _ways(record: Record) -> dict[str, tuple[str, str]]:
    """Return the ways in which ours is timed: the contender, and the prefix of its fields."""
    if not _queued(record):
        return {"": (OURS, "")}
    ways = {"queued": (OURS, "queued_"), "called": (OURS, "")}
    return ways | ({"graph": (GRAPH, "")} if any(row["contender"] == GRAPH for row in record["rows"]) else {})


def _case_cells(rows: Sequence[Row], contender: str, prefix: str) -> list[str]:
    ours = next(row for row in rows if row["contender"] == contender)
    taken = {row["contender"]: row.get(f"{prefix}ms") or row["ms"] for row in rows if is_peer(row["contender"])}
    peers = {name: ms for name, ms in taken.items() if ms is not None}
    best = min(peers, key=peers.__getitem__, default="none")
    if ours.get(f"{prefix}ms") is None:
        return ["no time", "", best]
    return [
        milliseconds(ours[f"{prefix}ms"], ours[f"{prefix}quartiles_ms"]),
        times(ours[f"{prefix}times_floor"]),
        f"{times(ours[f'{prefix}best_peer_over_this'])} ({best.replace('_', ' ')})",
    ]


def _case(facts: Sequence[str]) -> str:
    """Return size, dtype and kind of decay as one cell."""
    size, dtype, *decay = facts
    return ", ".join([size.replace("x", "×"), dtype, *(f"decay per {kind}" for kind in decay)])


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _median(row: Row) -> float:
    return float(row["median_us"])


_SECTIONS: dict[str, tuple[str, Callable[[Record], str]]] = {
    "scan": ("The scan", contest_table),
    "scan-small": ("The scan, small inputs", contest_table),
    "scan-long": ("The scan, one long sequence", contest_table),
    "scan-grid": ("The scan at random shapes", grid_table),
    "ssm": ("The fused layer", contest_table),
    "stream": ("Streaming", stream_table),
    "accuracy": ("Accuracy", accuracy_table),
    "language": ("Language models", language_table),
    "generation": ("Generated tokens", generation_table),
    "calls": ("Small calls from Python", calls_table),
    "first-call": ("First calls, without compiled kernels", first_call_table),
}
_CHARTS: dict[Callable[[Record], str], tuple[Callable[[Record], str], str]] = {
    contest_table: (contest_chart, "× floor"),
    grid_table: (grid_chart, "× floor by shape"),
    language_table: (language_chart, "time per token and throughput"),
}


if __name__ == "__main__":
    main()
