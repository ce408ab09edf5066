"""benchmarks/scan_grid.py: which shapes it draws, and what its summary says."""

import math

import pytest
import scan_grid


def test_shapes_depend_on_the_seed_alone_and_cover_their_limits():
    first, again, other = (scan_grid.draw_shapes(seed, 200, 1 << 20, 64 << 20) for seed in (3, 3, 4))
    assert first == again != other
    assert all(1 << 20 <= 12 * math.prod(shape) <= 64 << 20 for shape in first)
    batches, steps, channels = (sorted(column) for column in zip(*first, strict=True))
    assert batches[0] == 1 < 64 < batches[-1] <= 128
    assert 64 <= steps[0] < 128 < 32768 < steps[-1] <= 131072
    assert 16 <= channels[0] < 32 < 4096 < channels[-1] <= 8192
    assert not any(count % 8 for count in channels)
    assert any(shape[2] % 8 for shape in scan_grid.draw_shapes(3, 20, multiple=1))


def test_the_summary_has_the_distribution_by_traffic_and_names_shapes_where_a_peer_is_ahead():
    def row(size: str, megabytes: float, times_floor: float, ratio: float | None) -> dict:
        found = {"phase": "forward", "contender": "stablessm", "ms": 1.0, "size": size}
        return found | {"traffic_megabytes": megabytes, "times_floor": times_floor, "best_peer_over_this": ratio}

    rows = [row("a", 1.0, 4.0, 0.5), row("b", 8.0, 1.0, 2.0), row("c", 63.9, 3.0, 3.0), row("d", 64.0, 1.5, None)]
    peer = rows[0] | {"contender": "jax", "times_floor": 2.0}
    summary = scan_grid.summarize([*rows, peer])
    assert summary["forward, 1 to 8 MB: times floor"]["largest"] == 4.0
    middle = summary["forward, 8 to 64 MB: times floor"]
    assert middle == {"shapes": 2, "median": 2.0, "in_90_percent": 3.0, "largest": 3.0}
    assert summary["forward, 64 MB and more: times floor"]["shapes"] == 1
    assert summary["forward: least ahead of best peer"] == pytest.approx(0.5)
    assert summary["forward: behind a peer"] == {"a": 0.5}
    assert not any(name.startswith("forward+backward") for name in summary)
