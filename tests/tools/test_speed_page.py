"""docs/speed.md and its charts are what the committed records say."""

from __future__ import annotations

from pathlib import Path

import speed_page as figure

from stablessm.bench.contest import PHASES

ROOT = Path(__file__).parents[2]


def test_the_page_is_not_stale() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert figure.updated(page, ROOT) == page, "run: ./dev pages"


def test_the_times_in_the_readme_are_not_stale() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert figure.updated_readme(readme, ROOT) == readme, "run: ./dev pages"


def test_the_charts_are_not_stale() -> None:
    charts = figure.charts(ROOT)
    assert {"scan-cpu.svg", "scan-cuda.svg"} <= {path.name for path in charts}
    for path, chart in charts.items():
        assert path.read_text(encoding="utf-8") == chart, "run: ./dev pages"


def row(contender: str, ms: float | None, phase: str, **more: object) -> dict:
    return {
        "size": "1x2x3", "dtype": "float32", "decay": "step", "phase": phase, "contender": contender, "ms": ms,
        "quartiles_ms": ms and [0.9 * ms, 1.1 * ms], "times_floor": ms and ms / 2,
        "note": None if ms else "wrong", **more,
    }  # fmt: skip


def ours(phase: str) -> dict:
    """Behind the best peer when it is called, ahead when it is queued."""
    queued = {"queued_ms": 3.0, "queued_quartiles_ms": None, "queued_times_floor": 1.5}
    return row("stablessm", 4.0, phase, **queued, best_peer_over_this=0.5, queued_best_peer_over_this=2.0)


def test_a_lost_comparison_is_in_the_table() -> None:
    rows = []
    for phase in PHASES:
        rows.append(ours(phase))
        rows += [row("quick", 2.0, phase, queued_ms=8.0), row("slow", 6.0, phase), row("wrong", None, phase)]
    text = figure.contest_table({"rows": rows})
    assert "| 1×2×3, float32, decay per step | queued | 3.00 | 1.50 | 2.00 (slow) | 3.00 |" in text
    assert "| called | 4.00 (3.60–4.40) | 2.00 | 0.50 (quick) | 4.00 " in text
    assert (
        "\n\nstablessm is slower than the best peer in 0 of 2 comparisons of queued times, "
        "in 2 of 2 comparisons of called times.\n\n" in text
    )


def test_a_graph_of_ours_is_beside_ours_and_no_peer() -> None:
    rows = []
    for phase in PHASES:
        rows.append(ours(phase))
        rows += [row("stablessm, CUDA graph", 1.0, phase, best_peer_over_this=2.0), row("peer", 2.0, phase)]
    text = figure.contest_table({"rows": rows})
    assert "| called | 4.00 (3.60–4.40) | 2.00 | 0.50 (peer) |" in text
    assert "| graph | 1.00 (0.90–1.10) | 0.50 | 2.00 (peer) |" in text
    assert "in 0 of 2 comparisons of graph times." in text


def test_who_has_no_time_is_named_with_the_reason_and_the_cases() -> None:
    rows = [row("stablessm", 4.0, phase, best_peer_over_this=None) for phase in PHASES]
    rows += [row("peer", 6.0, PHASES[0]), row("peer", None, PHASES[1], note="left out: it would crash")]
    text = figure.contest_table({"rows": rows + [each | {"size": "4x5x6"} for each in rows]})
    (said,) = (line for line in text.splitlines() if line.startswith("No time"))
    assert said == (
        "No time is reported for peer, forward+backward (left out: it would crash): 1x2x3 float32 step, 4x5x6 float32 "
        "step."
    )


def test_ours_without_a_time_is_in_the_table() -> None:
    rows = [row(name, None, phase) for phase in PHASES for name in ("stablessm", "peer")]
    assert "| no time |  | none |" in figure.contest_table({"rows": rows})


def test_errors_are_a_line_a_case() -> None:
    rows = [
        {"steps": 1000, "dtype": "float32", "decay": "step", "what": what, "relative_error": 1e-6, "same_bits": True}
        for what in ("states", "gradient of the drive")
    ]
    text = figure.accuracy_table({"rows": rows})
    assert "| 1,000 | float32 | step | 1.0e-06 | 1.0e-06 | the same |" in text


def test_a_step_is_beside_the_best_peer() -> None:
    def step(contender: str, median: float | None) -> dict:
        tail = dict.fromkeys(("p99_us", "p99_9_us", "max_us"), median)
        return {"layer": "LRU", "width": 64, "contender": contender, "median_us": median, **tail} | {
            "best_peer_over_this": median and 8 / median
        }

    rows = [step("Streamer", 2.0), step("Streamer, tensors", 3.0), step("slow", 9.0), step("quick", 8.0)]
    text = figure.stream_table({"rows": [*rows, step("wrong", None)]})
    assert text.splitlines()[2:] == [
        "| LRU | 64 | Streamer | 2.0 | 2.0 | 2.0 | 2.0 | 4.00 |",
        "| LRU | 64 | quick | 8.0 | 8.0 | 8.0 | 8.0 | 1.00 |",
    ]


def test_language_models_are_two_tables_and_a_chart() -> None:
    trained = {"what": "training", "batch": 8, "length": 4096, "parameters": 93_800_000}
    asked = {"what": "generation", "context": 10_000, "parameters": 93_800_000}
    timed = {"ms": 20.0, "quartiles_ms": [19.0, 21.0]}
    rows = [
        {**trained, "contender": "stablessm", **timed, "tokens_per_second": 1.6e6, "model_flops": 9e14},
        {**trained, "contender": "Mamba", "left_out": "out of memory"},
        {**asked, "contender": "stablessm", **timed, "state_megabytes": 0.126},
        {**asked, "contender": "Mamba", "left_out": "reading the prompt would take about 80 s"},
    ]
    record = {"rows": rows, "machine": {"device": "a GPU"}}
    text = figure.language_table(record)
    assert "| stablessm | 93.8 M | 8 × 4096 | 20.0 (19.0–21.0) | 1,600,000 | 900 |" in text
    assert "| Mamba | 93.8 M | 8 × 4096 | none: out of memory |  |  |" in text
    assert "| stablessm | 93.8 M | 10,000 | 20.0 (19.0–21.0) | 0.13 |" in text
    assert "| Mamba | 93.8 M | 10,000 | none: reading the prompt would take about 80 s |  |" in text
    chart = figure.language_chart(record)
    assert chart.count("no time") == 2
    assert ">900<" in chart


def test_the_grid_shows_its_distribution_and_where_a_peer_is_ahead() -> None:
    shapes = {"8x1024x64": (1.25, 2.0), "1x64x16": (3.0, 0.5)}
    rows = [
        {"size": size, "phase": phase, "contender": name, "ms": 1.0, "times_floor": floor, "best_peer_over_this": ratio}
        for size, (floor, ratio) in shapes.items()
        for phase in PHASES
        for name in ("stablessm", "jax")
    ]
    numbers = {"shapes": 2, "median": 2.125, "in_90_percent": 3.0, "largest": 3.0}
    summary = {"copy_gigabytes_per_second": 3.0, "forward, 1 to 8 MB: times floor": numbers}
    summary |= {"forward: least ahead of best peer": 0.5, "forward: behind a peer": {"1x64x16": 0.5}}
    summary |= {"forward+backward: behind a peer": {}}
    record = {"rows": rows, "summary": summary, "shapes": 2, "machine": {"device": "a CPU"}}
    text = figure.grid_table(record)
    assert "| forward, 1 to 8 MB | 2 | 2.12 | 3.00 | 3.00 |" in text
    assert text.endswith(
        "forward: at least 0.50 times as fast as the best peer; forward: slower than a peer at 1×64×16 (0.50)."
    )
    chart = figure.grid_chart(record)
    assert chart.count("<circle") == 4
    assert chart.count('stroke="black"') == 2
    assert "8×1024×64: 1.25" in chart
