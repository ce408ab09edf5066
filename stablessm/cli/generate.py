"""``stablessm generate``: generates text with a language model and prints each token as it is sampled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer

from stablessm._errors import ArgumentError, printable
from stablessm.cli import model_source
from stablessm.cli.options import DEVICE, TRUST_REMOTE_CODE, argument, option, refusing
from stablessm.cli.output import printed


def generate(
    model: str = argument(..., "Folder written by stablessm train lm, or causal Hugging Face model (folder or name)."),
    prompt: str = argument("", "Beginning of the text (default: empty, a new document)."),
    tokens: int = option(200, "Maximum number of tokens; fewer if the document ends.", min=1),
    temperature: float = option(0.8, "Temperature of sampling; 0 always takes the most likely token.", min=0),
    top_k: int | None = option(None, "Number of most likely tokens from which to sample (default: all).", min=1),
    seed: int = option(0, "Seed of sampling; the same seed gives the same text.", min=0),
    device: str = DEVICE,
    trust_remote_code: bool = TRUST_REMOTE_CODE,
) -> dict[str, Any]:
    """Generate text with a language model.

    The text is printed while it is generated. A model trained by stablessm carries only its state, so its memory use
    does not grow with the text.

    Examples:

      stablessm train lm -o text=mine.txt --out runs/mine
      stablessm generate runs/mine "Once upon a time"
      stablessm generate runs/mine "Once" --tokens 1000 --top-k 50 --seed 1
      stablessm generate huggingface-folder "One day" --temperature 0
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
    return {"text": printed().removesuffix("\n")}


def _by_us(model: Any, source: str, prompt: str, count: int, **how: Any) -> Iterator[str]:
    """Yield each piece of text as soon as a stablessm model has generated it, with the tokenizer in the model's folder.

    ``count`` is the largest number of tokens. ``how`` are further arguments of :func:`~stablessm.models.sample_tokens`.
    """
    import torch

    from stablessm.models import sample_tokens
    from stablessm.tasks import tokenizers
    from stablessm.tasks.tokenizers import Characters

    if not hasattr(model, "sequence") or getattr(model.config, "vocab_size", None) is None:
        raise ArgumentError("MODEL", "a language model (stablessm train lm)", f"{source} ({type(model).__name__})")
    tokenizer = tokenizers.load(Path(source))
    if model.config.vocab_size != tokenizer.size:
        raise ArgumentError(
            "MODEL", f"a language model with the {tokenizer.size} tokens of the tokenizer in its folder", source
        )
    begin = tokenizer.encode(prompt)
    if tokenizer.level == "char" and (begin == tokenizer.unknown).any():
        new = [letter for letter, token in zip(prompt, begin, strict=True) if token == tokenizer.unknown]
        raise ArgumentError("PROMPT", "characters that occur in the training text", repr("".join(dict.fromkeys(new))))
    tokens = torch.tensor([tokenizer.border, *begin.tolist()])
    never = [Characters.unknown] if tokenizer.level == "char" else []  # an unknown character cannot be written
    drawn = sample_tokens(model, tokens, count=count, never=never, **how)
    # at word level the border token is the end of a line, not of the document
    end = None if tokenizer.level == "word" else tokenizer.border
    yield prompt + (" " if tokenizer.level == "word" and prompt else "")
    yield from tokenizer.decode_stream(takewhile(lambda token: token != end, drawn))


def _by_hugging_face(model: Any, source: str, prompt: str, count: int, *, trust_remote_code: bool, **how: Any) -> None:
    """Print the text that a Hugging Face model generates with its method ``generate``."""
    import torch
    from transformers import TextStreamer

    if not hasattr(model, "generate"):
        raise ArgumentError("MODEL", "a causal language model", f"{source} ({type(model).__name__})")
    tokenizer = model_source.load_tokenizer(source, "MODEL", trust_remote_code=trust_remote_code)
    tokens = tokenizer(prompt, return_tensors="pt")["input_ids"].to(torch.int64)
    if not tokens.shape[1]:
        first = _first(tokenizer.bos_token_id, tokenizer.eos_token_id)
        if first is None:
            raise ArgumentError("PROMPT", f"some text, because the tokenizer of {source} has no start token", "''")
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
