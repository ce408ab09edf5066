"""How fast are gated and selective layers on a CPU, compared with ``nn.GRU``, ``transformers`` and mambapy?

Forward and backward pass of ``MinGRU``, of its matrix products alone and of ``nn.GRU`` at 64×1000×100, and of
``SelectiveSSM`` and the mixer of Mamba at 1024 steps of width 768 with 16 states: in transformers without kernels, in
transformers with mambapy (where installed), and accelerated. The backward pass of the mixer without kernels takes a
time quadratic in the number of steps, so it is measured with 1024 steps at batch 1 only, and with 256 steps at batch
8. Generation with a Mamba of 130 million parameters (random weights), before and after ``accelerate``, and with our
language model of 94 million parameters, each compared with the time of a plain sum over all weights for every token.
Results and gradients are compared first. Each way is measured in turn, round after round, until it has taken 20 s; the
median counts.

python benchmarks/gated.py                        # writes benchmarks/results/gated-cpu.json
python benchmarks/gated.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import _measure
import torch
from generation import streaming
from torch import Tensor, nn

import stablessm as ssm
from stablessm.models import PRESETS

ROUNDS = 25
"""Enough for a median of the steady state, in which memory is reused."""
READING = "reading the weights"
PATIENCE = 20.0
"""Seconds after which a way is not measured again."""


def passes(run: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    """Return a function that computes a forward and a backward pass, and returns the output."""

    def both() -> Tensor:
        leaf = x.detach().requires_grad_()
        y = run(leaf)
        y.sum().backward()
        return y.detach()

    return both


def seconds(ways: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """Return the median time of each way, measured in turn; the first round counts only if there is no other."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            if sum(found[name]) < PATIENCE:
                start = time.perf_counter()
                way()
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:] or times) for name, times in found.items()}


def check(ours: Callable[[Tensor], Tensor], truth: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise an error unless values and gradients are the same to rounding."""
    found = []
    for run in (ours, truth):
        leaf = x.detach().requires_grad_()
        y = run(leaf)
        found.append((y, *torch.autograd.grad(y.square().sum(), leaf)))
    for u, v in zip(*found, strict=True):
        torch.testing.assert_close(u, v, rtol=1e-3, atol=1e-5)


def row(case: str, ways: dict[str, Callable[[], Tensor]], ours: str, rounds: int, **sizes: int) -> dict[str, object]:
    """Measure a case and print it."""
    times = seconds(ways, rounds)
    ratios = {name: took / times[ours] for name, took in times.items() if name != ours}
    print(case, sizes, {name: f"{1e3 * took:.1f} ms" for name, took in times.items()}, ratios, flush=True)
    return {"case": case, **sizes, "seconds": times, "ours": ours, "times_slower": ratios}


def gru(batch: int, steps: int, width: int, rounds: int) -> dict[str, object]:
    """Compare MinGRU with nn.GRU."""
    x = torch.randn(batch, steps, width)
    layers = {"MinGRU": ssm.MinGRU(width, width), "nn.GRU": nn.GRU(width, width, batch_first=True)}
    ours = layers["MinGRU"]

    def by_steps(x: Tensor) -> Tensor:
        outputs, state = [], None
        for t in range(x.shape[1]):
            y, state = ours.step(x[:, t], state)
            outputs.append(y)
        return torch.stack(outputs, 1)

    check(lambda x: ours(x)[0], by_steps, x[:2, :50])
    ways = {name: passes(lambda x, layer=layer: layer(x)[0], x) for name, layer in layers.items()}
    ways["products alone"] = passes(nn.Linear(width, 2 * width), x)  # MinGRU needs the matrix products of this layer
    return row("MinGRU", ways, "MinGRU", rounds, batch=batch, steps=steps, width=width)


def mixer(batch: int, steps: int, width: int, states: int, rounds: int) -> dict[str, object]:
    """Compare the mixer of Mamba in transformers with itself on our operators, and with SelectiveSSM."""
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    torch.manual_seed(0)
    config = MambaConfig(hidden_size=width, expand=1, state_size=states, num_hidden_layers=1, use_mambapy=False)
    plain, x = MambaMixer(config, 0), 0.1 * torch.randn(batch, steps, width)
    ours, layer = ssm.accelerate(copy.deepcopy(plain)), ssm.SelectiveSSM(width, states)
    check(ours, plain, x[:1, :64])
    ways = {"accelerated": passes(ours, x), "SelectiveSSM": passes(lambda x: layer(x)[0], x)}
    if batch * steps**2 <= 1024**2:
        ways["transformers"] = passes(plain, x)
    if find_spec("mambapy"):
        parallel = copy.deepcopy(plain)
        parallel.use_mambapy = True
        ways["mambapy"] = passes(parallel, x)
    return row("Mamba mixer", ways, "accelerated", rounds, batch=batch, steps=steps, width=width, states=states)


def generation(layers: int, width: int, prompt: int, count: int, rounds: int) -> dict[str, object]:
    """Compare the generation of text."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(hidden_size=width, num_hidden_layers=layers)).eval()
    ours, tokens = ssm.accelerate(copy.deepcopy(model)), torch.randint(3, 5000, (1, prompt))
    size = sum(parameter.numel() for parameter in model.parameters())

    def text(network: nn.Module) -> Callable[[], Tensor]:
        return lambda: network.generate(tokens, max_new_tokens=count, min_new_tokens=count, do_sample=False)

    with torch.no_grad():
        exact = copy.deepcopy(model).double()(tokens[:, :32]).logits
        plain, fast = (float((network(tokens[:, :32]).logits - exact).abs().max()) for network in (model, ours))
        if not fast <= 3 * plain + 1e-5:  # layers with random weights amplify rounding, in both
            raise SystemExit(f"generation: error of the logits {fast:.1e}, without accelerate {plain:.1e}")
        ways = {"accelerated": text(ours), "transformers": text(model), READING: reading(model, count)}
        sizes = {"parameters": size, "prompt": prompt, "tokens": count}
        return row("generation", ways, "accelerated", rounds, **sizes)


def reading(model: nn.Module, count: int) -> Callable[[], Tensor]:
    """Return a function that reads all weights once for every token."""
    weights = [parameter.detach() for parameter in model.parameters()]
    return lambda: torch.stack([torch.stack([weight.sum() for weight in weights]) for _ in range(count)])


def language_model(preset: str, count: int, rounds: int) -> dict[str, object]:
    """Compare our language model and its Streamer with the time for reading the weights."""
    torch.manual_seed(0)
    model = ssm.LanguageModel(8192, **PRESETS[preset].settings).eval()
    stream, prompt = streaming(model), torch.randint(0, 8192, (1, 1))
    ways = {
        "Streamer": lambda: torch.tensor(stream(count)),
        "generate": lambda: model.generate(prompt, count, temperature=0),
        READING: reading(model, count),
    }
    size = sum(parameter.numel() for parameter in model.parameters())
    return row("language model", ways, "Streamer", rounds, parameters=size, prompt=1, tokens=count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "gated-cpu.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if args.smoke:
        rows = [gru(2, 20, 8, 1), mixer(1, 16, 8, 4, 1), generation(1, 16, 8, 4, 1), language_model("lm-tiny", 4, 1)]
    else:
        rows = [gru(64, 1000, 100, ROUNDS)]
        rows += [mixer(batch, steps, 768, 16, ROUNDS) for batch, steps in ((1, 1024), (8, 256), (8, 1024))]
        rows += [generation(24, 768, prompt, 32, 4) for prompt in (16, 256)]
        rows += [language_model("lm-paper", 64, 8)]
    summary = {
        f"{entry['case']} {'×'.join(str(entry[k]) for k in ('batch', 'steps', 'prompt') if k in entry)}: {name}": ratio
        for entry in rows
        for name, ratio in entry["times_slower"].items()
    }
    _measure.write_record(args.out, "cpu", rows, summary)
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
