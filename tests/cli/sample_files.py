"""Random files of samples as instruments, spreadsheets and programs write them, with what they hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Drawn:
    """One file."""

    content: bytes
    times: np.ndarray
    values: np.ndarray
    """(n,), or (n, d_out, 1)."""
    noise: np.ndarray | None
    weights: np.ndarray | None
    dt: float | None
    """None for irregular times."""
    has_times: bool


def draw(seed: int) -> Drawn:
    """The file of a seed: other separators, marks, orders, names, comments, missing cells and encodings."""
    rng = np.random.default_rng(seed)
    count, has_times = int(rng.integers(12, 60)), bool(rng.random() < 0.8)
    grid = str(rng.choice(["even", "irregular", "geometric", "gaps"])) if has_times else "even"
    step = float(rng.choice([0.01, 0.25, 1.0, 5.0])) if has_times else 1.0
    times, dt = step * np.arange(count), step if grid in ("even", "gaps") else None
    if grid == "irregular":
        times = np.sort(rng.uniform(0, step * count, count).round(6) + 1e-3 * np.arange(count))
    elif grid == "geometric":
        times = np.geomspace(step, 1e3 * step, count)
    elif grid == "gaps":
        kept = np.sort(rng.permutation(count - 2)[: max(8, int(0.7 * count))]) + 1
        times = times[np.r_[0, kept, count - 1]]
    times = np.array([float(f"{t:.12g}") for t in times])
    outputs = int(rng.integers(1, 4)) if has_times else 1
    is_complex = bool(rng.random() < 0.35)
    values = rng.uniform(-2, 2, (len(times), outputs)).round(6) + 0.0
    if is_complex:
        values = values + 1j * rng.uniform(-2, 2, values.shape).round(6)
    extra = str(rng.choice(["", "", "noise", "weights"]))
    column = rng.uniform(0.1, 2, len(times)).round(4)

    separator = str(rng.choice([",", ";", "\t", " ", " ; ", "   ", ", "]))
    comma = bool(rng.random() < 0.4) and "," not in separator
    named = bool(rng.random() < 0.5) or bool(extra)
    style = str(rng.choice(["python", "matlab", "spaced", "columns" if named else "python"]))
    style = "python" if style == "spaced" and not separator.strip() else style

    def text(value: float) -> str:
        shape = str(rng.choice(["repr", "e", "fixed"]))
        shown = {"repr": repr(float(value)), "e": f"{value:.12e}", "fixed": f"{value:.18f}"}[shape]
        return shown.replace(".", ",") if comma else shown

    def cell(value: complex) -> list[str]:
        if not is_complex:
            return [text(float(np.real(value)))]
        real, imag = text(value.real), text(abs(value.imag))
        sign = "-" if value.imag < 0 else "+"
        return {"python": [f"({real}{sign}{imag}j)"], "matlab": [f"{real}{sign}{imag}i"],
                "spaced": [f"{real} {sign} {imag}i"], "columns": [real, text(value.imag)]}[style]  # fmt: skip

    rows = []
    for i, time in enumerate(times):
        row = [text(time)] * has_times
        for value in values[i]:
            row += cell(value)
        rows.append(row + ([text(column[i])] if extra else []))
    spaces = bool(rng.random() < 0.3)  # between column names, above another separator
    names = ["t [s]" if separator.strip() and not spaces else "t"] * has_times
    for output in range(outputs):
        tail = f"_{'abc'[output]}" if outputs > 1 else ""
        names += [f"re{tail}", f"im{tail}"] if style == "columns" and is_complex else [f"rho{tail}"]
    names += (
        [{"noise": str(rng.choice(["sigma", "noise", "std", "Error"])), "weights": "weight"}[extra]] if extra else []
    )

    gone: set[int] = set()
    if rng.random() < 0.3:
        gone = set(map(int, rng.integers(1, len(rows) - 1, 2)))
        for i in gone:
            rows[i][has_times] = str(
                rng.choice(["nan", "NA", "NaN", "-"] + [""] * bool(has_times and separator.strip()))
            )
    kept = np.array([i for i in range(len(rows)) if i not in gone])
    if has_times and rng.random() < 0.3:
        rows = [rows[i] for i in rng.permutation(len(rows))]
    if has_times and rng.random() < 0.2 and not extra:
        rows.insert(0, list(rows[-1]))  # the same line twice
    end = separator.strip() if separator.strip() and rng.random() < 0.15 else ""
    lines = [separator.join(row) + end for row in rows]
    if rng.random() < 0.2:
        lines.insert(int(rng.integers(1, len(lines))), str(rng.choice(["", "# a remark", "% a remark"])))
    if named:
        lines.insert(0, str(rng.choice(["", "# "])) + ("  ".join(names) if spaces else separator.join(names) + end))
    if rng.random() < 0.2:
        lines.insert(0, str(rng.choice(["# measured by hand", "Instrument: A", "% 2026-11-18 12:00"])))
    if rng.random() < 0.25:  # notes below the samples, which name what they are about
        mean = separator.join(["Mean", text(float(np.real(values).mean()))])
        lines += [mean, "end of data", "* measured twice", "", '"by A, B; and C"'][
            slice(*np.sort(rng.integers(0, 6, 2)))
        ]
    content = str(rng.choice(["\n", "\r\n"])).join(lines)
    encoded = content.encode(str(rng.choice(["utf-8", "utf-8-sig", "utf-16"], p=[0.7, 0.2, 0.1])))
    shaped = values[:, 0] if outputs == 1 else values[:, :, None]
    special = {name: column[kept] if extra == name else None for name in ("noise", "weights")}
    return Drawn(encoded, times[kept], shaped[kept], special["noise"], special["weights"], dt, has_times)
