"""Times of a generated token on a GPU: our loop, ``sample_tokens`` and the loop of transformers.

python benchmarks/generation.py --device cuda

The model is the preset ``lm-paper`` with random weights. Before anything is timed, tokens are compared: with and
without a CUDA graph, and with the most likely tokens of full forward passes. A time is the difference between a long
and a short text, divided by the difference in tokens, and the median of several turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import _language_models as peers
import _measure
import numpy as np
import torch

from stablessm import Streamer
from stablessm.models import PRESETS, LanguageModel, StableSSMForCausalLM, decoding, sample_tokens

BATCHES: dict[str, dict[torch.dtype, tuple[int, ...]]] = {
    "cuda": {torch.bfloat16: (1, 4, 16, 64, 128), torch.float32: (1, 64)},
    "cpu": {torch.float32: (1,)},
}
SETTINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "top 50": {"temperature": 0.8, "top_k": 50}}


def built(preset: str, device: str, dtype: torch.dtype) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(8192, **PRESETS[preset].settings).to(device, dtype).eval()


@torch.no_grad()
def compared(preset: str, device: str) -> dict[str, Any]:
    """Whether a graph changes tokens, and how far the logit of a token is below the largest of a full forward pass."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16)[: 2 if device == "cuda" else 1]:
        model, prompt = built(preset, device, dtype), torch.randint(0, 8192, (3, 20), device=device)
        for weight in (model.body.encoder.weight, model.body.blocks[-1].narrow.weight):
            torch.nn.init.normal_(weight)  # otherwise a token follows itself
        with_graph = [model.generate(prompt, 40, **how) for how in SETTINGS.values()]
        plain, decoding.PLAIN = decoding.PLAIN, 10**9
        without = [model.generate(prompt, 40, **how) for how in SETTINGS.values()]
        decoding.PLAIN = plain
        tokens = with_graph[0]
        logits = model(torch.cat([prompt, tokens], 1))[:, prompt.shape[1] - 1 : -1].float()
        short = (logits.amax(-1) - logits.gather(-1, tokens[..., None])[..., 0]).max() / logits.std()
        same = all(torch.equal(*pair) for pair in zip(with_graph, without, strict=True))
        known = {"same_without_a_graph": same, "shortfall_in_deviations": float(short)}
        found[str(dtype).removeprefix("torch.")] = known | {"distinct_tokens": len(tokens.unique())}
    return found


def timed(run: Any, short: int, long: int, turns: int) -> tuple[float, float, float]:
    """Quartiles of the number of milliseconds per token."""
    run(short)
    each = []
    for _ in range(turns):
        taken = []
        for count in (short, long):
            _measure.synchronize()
            begun = time.perf_counter()
            run(count)
            _measure.synchronize()
            taken.append(time.perf_counter() - begun)
        each.append(1e3 * (taken[1] - taken[0]) / (long - short))
    low, middle, high = statistics.quantiles(each, n=4, method="inclusive")
    return low, middle, high


def row(loop: str, dtype: torch.dtype, batch: int, draw: str, quartiles: tuple[float, float, float]) -> dict[str, Any]:
    low, middle, high = quartiles
    found = {"loop": loop, "dtype": str(dtype).removeprefix("torch."), "batch": batch, "draw": draw, "ms": middle}
    rate = 1e3 * batch / middle
    print(f"{loop:22} {found['dtype']:9} batch {batch:3} {draw:7} {middle:7.3f} ms, {rate:9,.0f} tokens/s", flush=True)
    return found | {"quartiles_ms": (low, high), "tokens_per_second": rate}


def streaming(model: LanguageModel) -> Callable[[int], list[int]]:
    """Return a loop around a Streamer, checked to draw the tokens of ``generate``."""
    streamer, prompt = Streamer(model), torch.randint(0, 8192, (1, 5))

    def run(count: int) -> list[int]:
        streamer.reset()
        logits, drawn = streamer.run(prompt.numpy())[:, -1], []
        for i in range(count):
            drawn.append(int(logits.argmax(-1)[0]))
            if i + 1 < count:
                logits = streamer(np.array(drawn[-1:]))
        return drawn

    expected = model.generate(prompt, 10, temperature=0)[0].tolist()
    if run(10) != expected:
        raise SystemExit("the Streamer draws other tokens")
    return run


def rows(preset: str, device: str, count: int, turns: int, batches: dict[Any, Any]) -> list[dict[str, Any]]:
    found = []
    for dtype, sizes_of_batches in batches.items():
        model, sizes = built(preset, device, dtype), (count // 4, count)
        for batch in sizes_of_batches:
            prompt = torch.randint(0, 8192, (batch, 100), device=device)
            for name, how in SETTINGS.items():
                taken = timed(lambda n, m=model, p=prompt, h=how: m.generate(p, n, **h), *sizes, turns)
                found.append(row("LanguageModel.generate", dtype, batch, name, taken))
        prompt = torch.randint(0, 8192, (100,), device=device)
        for name, how in SETTINGS.items():
            taken = timed(lambda n, m=model, p=prompt, h=how: list(sample_tokens(m, p, count=n, **h)), *sizes, turns)
            found.append(row("sample_tokens", dtype, 1, name, taken))
        if device == "cpu":
            taken = timed(streaming(model), *sizes, turns)
            found.append(row("Streamer", dtype, 1, "greedy", taken))
        wrapped = StableSSMForCausalLM.of(model)
        for batch in {1, 64} & set(sizes_of_batches):
            prompt = torch.randint(0, 8192, (batch, 100), device=device)
            taken = timed(lambda n, m=wrapped, p=prompt: peers.generated(m, p, n), *sizes, turns)
            found.append(row("transformers generate", dtype, batch, "greedy", taken))
    return found


def main() -> None:
    parser = _measure.parser(__doc__, "generation")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    preset, count, turns = ("lm-tiny", 16, 2) if args.smoke else ("lm-paper", 256, args.turns)
    if args.device == "cpu":
        count = min(count, 32)
    correct = compared(preset, args.device)
    print(correct, flush=True)
    if not all(each["same_without_a_graph"] for each in correct.values()):
        raise SystemExit("a CUDA graph changes tokens")
    weights = sum(p.numel() for p in built(preset, args.device, torch.float32).parameters())
    rate = _measure.copy_bandwidth(args.device, 16 if args.smoke else 1024) / 1e9
    summary = {"parameters": weights, "copy_gigabytes_per_second": rate, "correct": correct}
    out = _measure.record_path(args)
    batches = {torch.float32: (1, 2)} if args.smoke else BATCHES[args.device]
    found = rows(preset, args.device, count, turns, batches)
    _measure.write_record(out, args.device, found, summary)


if __name__ == "__main__":
    main()
