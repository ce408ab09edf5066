"""Language models: tokens a second in training, and the time of a generated token as the context grows.

    python benchmarks/language.py --device cuda      # GPT-2's size, length 4096, contexts to 100,000: some minutes
    python benchmarks/language.py                    # a smaller one on this CPU
    python benchmarks/language.py --smoke --out /tmp/smoke.json

Ours (Hyena blocks, a real recurrence, the best map), ``transformers``' Mamba in PyTorch alone (whether its kernels can
be imported is said) and a transformer of GPT-2's shape with PyTorch's fused attention; all with tied embeddings of 8192
tokens, random weights, and called as users of ``transformers`` call them.

First each must be right: the tokens of ``generate`` are those of full forward passes, in float32; one that is not gets
no time. A training step is loss, gradients and fused AdamW, on a GPU with products in bfloat16 (autocast). What counts
is the throughput per parameter: 6 operations a parameter and token, of all parameters, over the time; what attention
does beside is not counted as work. A generated token's time is that from one to the next in ``generate``, weights in
bfloat16 on a GPU. A context whose prompt would take longer than ``--prompt-seconds`` to read, from what the one before
took, is left out. A contender whose second training step takes longer than ``--seconds`` is not asked for another, nor
one whose first takes ten times that: its time is that of this one.

On a GPU PyTorch has one thread on the host, and its attention does without cuDNN: that makes a plan for every new
length of the text, which took several times as long as the token it was for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import _language_models as models
import _measure
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.bench.machine import limits
from stablessm.bench.measure import event_clock, host_clock, timings

SIZES = {
    "cuda": models.Size(768, 12, 4096, (1, 8), (100, 1000, 10_000, 100_000), 64),
    "cpu": models.Size(256, 4, 512, (1,), (100, 1000, 10_000), 32, heads=4),
    "smoke": models.Size(16, 1, 24, (2,), (10, 20), 4, heads=2, vocabulary=32),
}
TOLERANCE = 1e-3
"""Of a logit: by so much a choice may fall short, in float32."""
SLOW = 10
"""So many times the time for a contender, and a first step is long beside what it compiles."""
SKIPPED = 8
"""Generated tokens that are not timed: the first ones allocate and compile."""


def training_step(model: nn.Module, tokens: Tensor) -> Callable[[], Tensor]:
    """One update, in bfloat16 where there is a GPU."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    on_gpu = tokens.is_cuda

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=on_gpu):
            logits = model(tokens[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def training_rows(names: list[str], size: models.Size, batch: int, device: str, seconds: float) -> list[dict[str, Any]]:
    """All contenders on batches of the same tokens."""
    tokens = torch.randint(0, size.vocabulary, (batch, size.length + 1), device=device)
    rows, steps = {}, {}
    for name in names:
        model = models.built(name, size, device).train()
        rows[name] = {"what": "training", "contender": name, "parameters": models.parameters(model)}
        rows[name] |= {"batch": batch, "length": size.length}
        step = training_step(model, tokens)
        try:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            if not bool(step().isfinite()):
                rows[name] |= {"left_out": "its loss is not finite"}
                continue
            first = 1e3 * (time.perf_counter() - begun)
            taken = first if first > SLOW * 1e3 * seconds else host_clock(step, 1)
            if taken > 1e3 * seconds:
                rows[name] |= measured(rows[name], taken, (taken, taken), 1)
            else:
                steps[name] = step
        except torch.OutOfMemoryError:
            rows[name] |= {"left_out": "out of memory"}
        if device == "cuda":
            rows[name]["peak_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
            del model, step
            torch.cuda.empty_cache()
    clock = event_clock if device == "cuda" else host_clock
    for name, taken in timings(steps, seconds=seconds, clocks=dict.fromkeys(steps, clock)).items():
        rows[name] |= measured(rows[name], taken.median, taken.quartiles, taken.turns)
    return list(rows.values())


def measured(row: dict[str, Any], ms: float, quartiles: tuple[float, float], turns: int) -> dict[str, Any]:
    """What is known of a training step's time."""
    a_second = 1e3 * row["batch"] * row["length"] / ms
    known = {"ms": ms, "quartiles_ms": quartiles, "turns": turns, "tokens_per_second": a_second}
    return known | {"model_flops": 6 * row["parameters"] * a_second}


def generation_rows(name: str, size: models.Size, device: str, prompt_seconds: float) -> list[dict[str, Any]]:
    """One contender at every context."""
    model, rows = models.built(name, size, device), []
    if device == "cuda":
        model = model.to(torch.bfloat16)
    text = torch.randint(0, size.vocabulary, (1, max(size.contexts)), device=device)
    models.generated(model, text[:, :10], SKIPPED)
    before: tuple[int, float] | None = None
    for context in size.contexts:
        row: dict[str, Any] = {"what": "generation", "contender": name, "parameters": models.parameters(model)}
        rows.append(row | {"context": context})
        if before is not None and (expected := before[1] * context / before[0]) > prompt_seconds:
            rows[-1]["left_out"] = f"reading the prompt would take about {expected:.0f} s"
            continue
        clock = models.TokenClock()
        try:
            output = models.generated(model, text[:, :context], size.tokens + SKIPPED, clock)
        except torch.OutOfMemoryError:
            rows[-1]["left_out"] = "out of memory"
            continue
        prompt, each = clock.milliseconds()
        low, middle, high = statistics.quantiles(each[SKIPPED - 1 :], n=4, method="inclusive")
        rows[-1] |= {"ms": middle, "quartiles_ms": (low, high), "turns": len(each[SKIPPED - 1 :])}
        rows[-1] |= {"prompt_ms": prompt, "state_megabytes": models.state_bytes(output) / 1e6}
        before = (context, prompt / 1e3)
    return rows


def summarized(rows: list[dict[str, Any]], wrong: dict[str, float]) -> dict[str, Any]:
    """Our throughput per parameter over each peer's, and how a token's time grows with the context."""
    trained = {(row["contender"], row["batch"]): row for row in rows if row["what"] == "training" and "ms" in row}
    ratios: dict[str, dict[int, float]] = {}
    for (name, batch), row in trained.items():
        if name != models.OURS and (models.OURS, batch) in trained:
            ours = trained[models.OURS, batch]["model_flops"]
            ratios.setdefault(name, {})[batch] = ours / row["model_flops"]
    growth = {}
    for name in models.CONTENDERS:
        timed = [row for row in rows if row["what"] == "generation" and row["contender"] == name and "ms" in row]
        if len(timed) > 1:
            first, last = timed[0], timed[-1]
            growth[name] = {"from": first["context"], "to": last["context"], "times": last["ms"] / first["ms"]}
    return {
        "times_the_throughput_per_parameter_of": ratios,
        "growth_of_a_token's_time": growth,
        "shortfall_of_generate": wrong,
    }


def told(row: dict[str, Any]) -> str:
    """A line for a terminal."""
    what = f"batch {row['batch']}" if row["what"] == "training" else f"context {row['context']}"
    line = f"{row['what']:10} {what:16} {row['contender']:10}"
    if "left_out" in row:
        return f"{line} {row['left_out']}"
    low, high = row["quartiles_ms"]
    line += f" {row['ms']:9.2f} ms ({low:.2f} to {high:.2f})"
    if row["what"] == "training":
        return f"{line}, {row['tokens_per_second']:,.0f} tokens/s, {row['model_flops'] / 1e12:.3g} TFLOP/s"
    return f"{line} a token, state {row['state_megabytes']:.3f} MB, prompt {row['prompt_ms']:.0f} ms"


def main() -> None:
    parser = _measure.parser(__doc__, "language")
    parser.add_argument("--only", choices=["training", "generation"], help="one half")
    parser.add_argument("--seconds", type=float, default=5.0, help="most time for one contender in one training case")
    parser.add_argument("--prompt-seconds", type=float, default=30.0, help="most time to read a prompt")
    args = parser.parse_args()
    size, seconds = SIZES["smoke" if args.smoke else args.device], 0.05 if args.smoke else args.seconds
    _measure.same_allocator_for_all()
    if args.device == "cuda":
        torch.set_num_threads(1)
        torch.backends.cuda.enable_cudnn_sdp(False)
    rates = limits(args.device, smoke=args.smoke)
    out, rows = _measure.record_path(args), []
    prompt = torch.randint(0, size.vocabulary, (2, 12), device=args.device)
    wrong = {name: models.gap(models.built(name, size, args.device), prompt, 12) for name in models.CONTENDERS}
    names = [name for name, short in wrong.items() if short <= TOLERANCE]
    for name in wrong.keys() - set(names):
        print(f"{name}: generate() is not the argmax of forward passes, off by {wrong[name]:.2g}", flush=True)
    cases: list[Callable[[], list[dict[str, Any]]]] = []
    if args.only != "generation":
        cases += [lambda b=b: training_rows(names, size, b, args.device, seconds) for b in size.batches]
    if args.only != "training":
        cases += [lambda n=n: generation_rows(n, size, args.device, args.prompt_seconds) for n in names]
    for case in cases:
        for row in (found := case()):
            print(told(row), flush=True)
        rows += found
        summary, peers = {**rates, **summarized(rows, wrong)}, models.versions()
        _measure.write_record(out, args.device, rows, summary, complete=case is cases[-1], peers=peers)


if __name__ == "__main__":
    main()
