"""Generate the tables and the chart of docs/scaling.md from the cost model and the committed records.

./dev pages        # bring docs/scaling.md and docs/assets/scaling.svg up to date
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _cost import Machine, Network, Plan, crossing, fastest, longest_context, step_cost
from _cost_simulation import simulated_seconds
from bar_chart import Panel, bars
from marked import replaced

ROOT = Path(__file__).parent.parent
LENGTHS = [2**k for k in range(10, 25, 2)]
RANKS = [1, 8, 64, 256, 1024]
TOKENS = 2**24
MACHINE = Machine()
NETWORKS = {"0.1 B": Network(), "3 B": Network(d_model=3072, n_layers=26, d_state=128)}
"""lm-paper and lm-3b with GPT-2's vocabulary."""


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def power(number: int) -> str:
    return f"2{str(number.bit_length() - 1).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 1e11 else f"{size / 1e9:.3g} GB"


def thousands(count: int) -> str:
    return f"{count / 1e6:.3g} million" if count >= 1e6 else f"{1000 * round(count / 1000):,}"


def one_sequence() -> str:
    """Return a table of compute, communication and memory per step of one sequence on all GPUs."""
    network = NETWORKS["0.1 B"]
    rows = []
    for steps in LENGTHS:
        cells = []
        for ranks in RANKS:
            cost = step_cost(network, MACHINE, Plan(sequence=ranks), steps=steps, batch=1)
            fits = "" if cost.memory <= MACHINE.memory else " ✗"
            times = f"{seconds(cost.compute)} + {seconds(cost.communication)}"
            cells.append(f"{times}, {gigabytes(cost.memory)}{fits}")
        rows.append([power(steps), *cells])
    return markdown(["tokens", *(f"{ranks:,} GPU{'s' * (ranks > 1)}" for ranks in RANKS)], rows)


def best_plans() -> str:
    """Return tables of the fastest plan for a step of 2^24 tokens, by length and number of GPUs."""
    tables = []
    for name, network in NETWORKS.items():
        rows = []
        for steps in LENGTHS:
            cells = []
            for ranks in RANKS:
                found = fastest(network, MACHINE, ranks, steps=steps, batch=TOKENS // steps)
                share = "" if found is None else f"{100 * found[1].communication / found[1].seconds:.0f} %"
                cells.append("does not fit" if found is None else f"{found[0]}: {seconds(found[1].seconds)}, {share}")
            rows.append([power(steps), *cells])
        head = [f"{name}, tokens", *(f"{ranks:,} GPU{'s' * (ranks > 1)}" for ranks in RANKS)]
        tables.append(markdown(head, rows))
    return "\n\n".join(tables)


def contexts() -> str:
    """Return a table of the longest sequence that fits."""
    rows = []
    for name, network in NETWORKS.items():
        for again in (False, True):
            own = replace(network, recompute=again)
            cells = [thousands(longest_context(own, MACHINE, ranks)) for ranks in RANKS]
            rows.append([f"{name}{', recomputed' if again else ''}", *cells])
    return markdown(["model", *(f"{ranks:,} GPU{'s' * (ranks > 1)}" for ranks in RANKS)], rows)


def crossings() -> str:
    """Return the lengths above which splitting the sequence is faster than splitting the products."""
    rows = []
    for name, network in NETWORKS.items():
        cells = []
        for ranks in (2, 4, 8):
            found = crossing(network, MACHINE, Plan(sequence=ranks), Plan(tensor=ranks))
            cells.append("never" if found is None else f"{found:,}")
        rows.append([name, *cells])
    return markdown(["model", "2 GPUs", "4 GPUs", "8 GPUs"], rows)


def simulation() -> str:
    """Return a table of the time spent waiting for carries: formula, simulation, simulation with uneven ranks."""
    network, rows = NETWORKS["0.1 B"], []
    for ranks in (2, 8, 64, 1024):
        plan, size = Plan(sequence=ranks), {"steps": 2**14 * ranks, "batch": 1}
        cost = step_cost(network, MACHINE, plan, **size)
        others = cost.seconds - cost.carries
        played = [simulated_seconds(network, MACHINE, plan, **size, jitter=jitter) for jitter in (0.0, 0.05, 0.2)]
        waits = [seconds(max(0.0, time - others)) for time in played]
        rows.append([f"{ranks:,}", seconds(cost.compute), seconds(cost.carries), *waits])
    return markdown(["ranks", "compute", "formula", "simulated", "uneven by 5 %", "uneven by 20 %"], rows)


def chart() -> str:
    """Return a chart of the communication of one sequence on 8 GPUs, by length."""
    panels = []
    for name, network in NETWORKS.items():
        groups: dict[str, dict[str, float | None]] = {}
        for steps in LENGTHS:
            sequence, tensor = (
                step_cost(network, MACHINE, plan, steps=steps, batch=1) for plan in (Plan(sequence=8), Plan(tensor=8))
            )
            groups[f"{power(steps)} tokens"] = {
                "sequence: carries": 1e6 * sequence.carries,
                "sequence, data: gradients": 1e6 * sequence.gradients,
                "tensor: products": 1e6 * tensor.products,
            }
        panels.append(Panel(f"{name} parameters", groups))
    return bars("Communication per step of one sequence on 8 GPUs, µs", panels)


def measured() -> str:
    """Return the measurements of every committed record, with the predictions."""
    parts = []
    for device in ("cpu", "cuda"):
        path = ROOT / "benchmarks" / "results" / f"scaling-{device}.json"
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            parts.append(about(record))
            parts.append((on_cpu if device == "cpu" else on_gpu)(record))
    return "\n\n".join(parts)


def about(record: dict[str, Any]) -> str:
    machine, summary = record["machine"], record["summary"]
    load = f"; {summary['cores']} cores, load {summary['load']:.1f} before the run" if "load" in summary else ""
    where = f"{machine['device']}, torch {machine['versions']['torch']}, {record['date']}{load}"
    return f"Measured by `{record['command']}` on {where}."


def on_cpu(record: dict[str, Any]) -> str:
    rows = []
    for row in record["rows"]:
        told = row["predicted"]
        cells = (
            (seconds(row["processor_seconds"]), seconds(told["compute"]), row["processor_ratio"]),
            (seconds(row["seconds"]), seconds(told["clock"]), row["clock_ratio"]),
            (f"{row['peak_bytes'] / 1e6:.0f} MB", f"{told['activations'] / 1e6:.0f} MB", row["memory_ratio"]),
        )
        beside = [f"{found} ({expected}): {ratio:.2f}" for found, expected, ratio in cells]
        processor = sorted(one["processor_seconds"] for one in row["rounds"])
        spread = f"{seconds(processor[0])} to {seconds(processor[-1])}"
        rows.append([row["plan"], *beside, f"{row['sent_bytes']:,.0f} ({told['sent']:,.0f})", spread])
    head = ["plan", "processor time per rank", "wall-clock time", "peak memory per rank", "bytes of carries"]
    return markdown([*head, "processor time over all rounds"], rows)


def on_gpu(record: dict[str, Any]) -> str:
    """Return a table that compares times with the cost model, and with the longer of it and the shortest sequence."""
    rows, host = [], dict[tuple[str, bool], float]()
    for row in record["rows"]:
        told = row["predicted"]
        floor = host.setdefault((row["plan"], row["recompute"]), row["seconds"])
        longer = max(floor, told["compute"])
        cells = (
            (seconds(row["seconds"]), seconds(told["compute"]), row["seconds_ratio"]),
            (seconds(row["seconds"]), seconds(longer), row["seconds"] / longer),
            (gigabytes(row["peak_bytes"]), gigabytes(told["activations"]), row["memory_ratio"]),
        )
        beside = [f"{found} ({expected}): {ratio:.2f}" for found, expected, ratio in cells]
        rows.append([f"{row['plan']}{', recomputed' if row['recompute'] else ''}", power(row["steps"]), *beside])
    return markdown(["plan", "tokens", "step", "step, at least the host's time", "peak memory"], rows)


SECTIONS = {
    "one sequence": one_sequence, "plans": best_plans, "contexts": contexts, "crossings": crossings,
    "simulation": simulation, "measurements": measured,
}  # fmt: skip


def updated(page: str) -> str:
    """Return the page with new text between its marks."""
    for name, table in SECTIONS.items():
        page = replaced(page, name, f"\n\n{table()}\n\n")
    return page


def main() -> None:
    page = ROOT / "docs" / "scaling.md"
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs" / "assets" / "scaling.svg").write_text(chart(), encoding="utf-8")


if __name__ == "__main__":
    main()
