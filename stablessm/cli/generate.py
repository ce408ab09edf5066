"""``stablessm generate``: text from a language model, as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._errors import ArgumentError, printable
from stablessm.cli import model_source
from stablessm.cli.options import Device, TrustRemoteCode, refusing


def generate(
    model: Annotated[
        str, typer.Argument(help="What stablessm train lm wrote, or a Hugging Face causal model: a folder or a name.")
    ],
    prompt: Annotated[str, typer.Argument(help="What the text begins with; nothing: a new document.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many at most; fewer if the document ends.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the most likely token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among so many of the most likely tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same text.")] = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Go on with a prompt, and print the text as it comes.

    A model of ours keeps its state and nothing else: memory does not grow with the text.

    Examples:

      stablessm train lm -o text=mine.txt --out runs/mine

      stablessm generate runs/mine "Once upon a time"

      stablessm generate runs/mine "Once" --tokens 1000 --temperature 0.8 --top-k 50 --seed 1

      stablessm generate path/to/huggingface-folder "One day" --temperature 0
    """
    from stablessm.training import TrainingConfig

    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "seed": seed}
    with refusing(cannot="generate", interrupted=""):
        chosen = TrainingConfig(device=device).chosen_device()
        loaded, kind = model_source.load_model(model, trust_remote_code=trust_remote_code)
        loaded = loaded.to(chosen).eval()
        if kind.startswith("Hugging Face"):
            _by_hugging_face(loaded, model, prompt, tokens, trust_remote_code=trust_remote_code, **how)
        else:
            for piece in _by_us(loaded, model, prompt, tokens, **how):
                typer.echo(printable(piece) if sys.stdout.isatty() else piece, nl=False)
            typer.echo()


def _by_us(model: Any, source: str, prompt: str, count: int, **how: Any) -> Iterator[str]:
    """The text in pieces, with the tokenizer beside the model."""
    import torch

    from stablessm.models import sample_tokens
    from stablessm.tasks import tokenizers
    from stablessm.tasks.tokenizers import Characters

    tokenizer = tokenizers.load(Path(source))
    if not hasattr(model, "sequence") or getattr(model.config, "vocab_size", None) != tokenizer.size:
        raise ArgumentError("MODEL", f"a language model of the {tokenizer.size} tokens beside it", source)
    begin = tokenizer.encode(prompt)
    if tokenizer.level == "char" and (begin == tokenizer.unknown).any():
        new = [letter for letter, token in zip(prompt, begin, strict=True) if token == tokenizer.unknown]
        raise ArgumentError("PROMPT", "characters that the model has seen", repr("".join(dict.fromkeys(new))))
    tokens = torch.tensor([tokenizer.border, *begin.tolist()])
    never = [Characters.unknown] if tokenizer.level == "char" else []  # a character that is unknown cannot be written
    drawn = sample_tokens(model, tokens, count=count, never=never, **how)
    end = None if tokenizer.level == "word" else tokenizer.border  # a line end of words ends no document
    yield prompt + (" " if tokenizer.level == "word" and prompt else "")
    yield from tokenizer.decode_stream(takewhile(lambda token: token != end, drawn))


def _by_hugging_face(model: Any, source: str, prompt: str, count: int, *, trust_remote_code: bool, **how: Any) -> None:
    """Print the text with the model's own ``generate``."""
    import torch
    from transformers import TextStreamer

    if not hasattr(model, "generate"):
        raise ArgumentError("MODEL", "a causal language model", f"{source} ({type(model).__name__})")
    tokenizer = model_source.load_tokenizer(source, "MODEL", trust_remote_code=trust_remote_code)
    tokens = tokenizer(prompt, return_tensors="pt")["input_ids"].to(torch.int64)
    if not tokens.shape[1]:
        first = _first(tokenizer.bos_token_id, tokenizer.eos_token_id)
        if first is None:
            raise ArgumentError("PROMPT", f"some text, as the tokenizer of {source} has no token to begin with", "''")
        tokens = torch.tensor([[first]])
    drawing = {"temperature": how["temperature"], "top_k": how["top_k"] or 0} if how["temperature"] else {}
    torch.manual_seed(how["seed"])
    model.generate(
        tokens.to(model.device),
        attention_mask=torch.ones_like(tokens, device=model.device),
        max_new_tokens=count,
        pad_token_id=_first(tokenizer.pad_token_id, tokenizer.eos_token_id),
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        do_sample=bool(drawing),
        **drawing,
    )


def _first(*tokens: int | None) -> int | None:
    return next((token for token in tokens if token is not None), None)
