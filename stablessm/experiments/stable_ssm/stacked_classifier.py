"""Computes many sequence classifiers, which differ in weights and maps, as one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm._errors import ArgumentError
from stablessm.layers import discretize
from stablessm.models import SequenceClassifier
from stablessm.models.block import ACTIVATIONS
from stablessm.models.hyena_filter import TAPS, of_joined
from stablessm.models.mixers import GATED
from stablessm.reparam import Reparameterization
from stablessm.reparam import get as get_map
from stablessm.scan import ssm_scan

_OWN = ("map", "map_options")
"""The settings in which the models may differ."""


@final
class StackedClassifier:
    """A stack of M :class:`~stablessm.models.SequenceClassifier` with S4D or gated S4D (Hyena) blocks, computed
    together.

    All models get the same inputs, and each output equals the output of the model on its own. An S4D layer computes its
    channels independently, so the S4D layers of M models with H channels are one scan of M·H channels. Dense layers are
    batched products of M matrices. The P weights of each model are a row of one array (M, P).

    Args:
        models: The models, which may differ in their maps and weights.
        fast: If True, the operations between the scans are compiled, and dense layers are computed in bfloat16.

    >>> models = [SequenceClassifier(3, d_input=1, d_model=4, n_layers=1, d_state=2, map=m) for m in ("exp", "direct")]
    >>> stack, x = StackedClassifier(models), torch.randn(5, 20, 1)
    >>> logits = stack(stack.weights, x)
    >>> logits.shape, torch.allclose(logits[1], models[1](x), atol=1e-5)
    (torch.Size([2, 5, 3]), True)
    """

    def __init__(self, models: Sequence[SequenceClassifier], *, fast: bool = False) -> None:
        if not models:
            raise ArgumentError("models", "one or more", "none")
        self.config = models[0].config
        own = {name: getattr(self.config, name) for name in _OWN}
        for model in models:
            if dataclasses.replace(model.config, **own) != self.config:
                raise ArgumentError("models", f"settings that differ in {', '.join(_OWN)} alone", model.config)
        c = self.config
        if c.mixer.removeprefix(GATED) != "s4d" or c.norm != "layer" or c.edge_dropout:
            got = f"{c.mixer}, {c.norm}, {c.edge_dropout:g}"
            raise ArgumentError("models", "the mixer s4d, the norm layer and no edge_dropout", got)
        self.maps = _runs(get_map(str(m.config.map), time="continuous", **m.config.map_options) for m in models)
        options = {"discretization": "zoh", **self.config.mixer_options}
        self._discretize = discretize.get(str(options["discretization"]))
        self.shapes = {name: tuple(p.shape) for name, p in models[0].named_parameters()}
        rows = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
        self.weights = torch.stack(rows)
        """(M, P): the initial weights."""
        self._dtype = torch.bfloat16 if fast else None
        self._before, self._after = self._before_scan, self._after_scan
        if fast:
            torch.compiler.reset()  # torch.compile limits the recompilations of one function
            self._before = torch.compile(self._before_scan, dynamic=False)
            self._after = torch.compile(self._after_scan, dynamic=False)

    def model(self, index: int, weights: Tensor) -> SequenceClassifier:
        """Return one of the stacked models as a separate classifier. Its weights are copied from row ``index`` of
        ``weights``.
        """
        config = dataclasses.asdict(self.config)
        own = [map for map, count in self.maps for _ in range(count)][index]
        model = SequenceClassifier(**{**config, "map": own.name, "map_options": dict(vars(own))}).to(weights.dtype)
        named = self._named(weights[index : index + 1].detach().cpu())
        model.load_state_dict({name: tensor[0] for name, tensor in named.items()})
        return model

    def __call__(
        self,
        weights: Tensor | Mapping[str, Tensor],
        x: Tensor,
        generator: torch.Generator | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Return the logits (M, B, classes) of M models, or the logits at each step (M, B, T, classes).

        Args:
            weights: Weights of all models: an array (M, P) like the attribute ``weights``, or a dict from each
                parameter name to a tensor (M, …).
            x: Inputs (B, T, d_input), or token ids (B, T).
            generator: Generator of the dropout masks, which all models share (default: no dropout).
            at: Indices (K,) of steps. If the models have logits at each step, only the logits at these steps are
                returned, (M, B, K, classes).
        """
        c, w = self.config, self._named(weights) if isinstance(weights, Tensor) else weights
        h = self._encoded(w, x)
        for i in range(c.n_layers):
            h = self._block(_under(w, f"body.blocks.{i}."), h, self._masks(h, generator))
        if c.per_step and at is not None:
            h = h[:, at]
        elif not c.per_step and c.pool == "last":
            h = h[:, -1:]
        h = _norm(_under(w, "body.norm."), h) if c.prenorm else h
        if not c.per_step and c.pool == "mean":
            h = h.mean(1, keepdim=True, dtype=torch.promote_types(h.dtype, torch.float32))
        logits = self._linear(_under(w, "readout."), h).permute(2, 0, 1, 3)
        return logits if c.per_step else logits[:, :, 0]

    def _named(self, weights: Tensor) -> dict[str, Tensor]:
        """Split the weights of all models, one row per model, into parameters. Return a dict from each parameter name
        to a view (models, …).
        """
        parts = weights.split([torch.Size(shape).numel() for shape in self.shapes.values()], 1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _encoded(self, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Encode the inputs of all M models as H channels each, and return (B, T, M, H). Tokens are encoded by a matrix
        product with one-hot vectors, so that gradients are summed in a fixed order.
        """
        table = w["body.encoder.weight"]
        if not x.is_floating_point():
            one_hot = (x[..., None] == torch.arange(table.shape[1], device=x.device)).to(table.dtype)
            return (one_hot @ table.movedim(0, 1).flatten(1)).unflatten(-1, (len(table), -1))
        bias = w["body.encoder.bias"]
        return F.linear(x.to(table.dtype), table.flatten(0, 1), bias.flatten()).unflatten(-1, bias.shape)

    def _masks(self, x: Tensor, generator: torch.Generator | None) -> list[Tensor | None]:
        """Return the four dropout masks of a block: before the gate, before the residual sum, and two in the MLP. All
        models use the same masks.
        """
        c = self.config
        widths = [c.d_model * c.gate, c.d_model, c.d_model * c.mlp, c.d_model * bool(c.mlp)]
        if generator is None or not c.dropout:
            return [None] * len(widths)
        draws = [torch.rand(len(x), 1, 1, width, generator=generator, device=x.device) for width in widths]
        return [(draw >= c.dropout).to(x.dtype) / (1 - c.dropout) for draw in draws]

    def _block(self, w: Mapping[str, Tensor], x: Tensor, masks: Sequence[Tensor | None]) -> Tensor:
        """Compute one block of all models, as :class:`~stablessm.models.Block` does."""
        query, drive = self._before(w, x)
        y = self._scan(_under(w, "mixer.inner." if query is not None else "mixer."), drive)
        return self._after(w, x, query, y, masks)

    def _before_scan(self, w: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor | None, Tensor]:
        """Compute the part of a block before the scan. Return two tensors: a factor by which the output of the scan is
        to be multiplied (None except in Hyena blocks), and the input of the scan.
        """
        x = _norm(_under(w, "norm."), x) if self.config.prenorm else x
        if not self.config.mixer.startswith(GATED):
            return None, x
        z = F.pad(self._linear(_under(w, "mixer.projection."), x), (0, 0, 0, 0, TAPS - 1, 0))
        return of_joined(z, w["mixer.filter"].transpose(0, 1))

    def _after_scan(
        self, w: Mapping[str, Tensor], x: Tensor, query: Tensor | None, y: Tensor, masks: Sequence[Tensor | None]
    ) -> Tensor:
        """Compute the part of a block after the scan: output factor, gate, dropout, residual sum, norm and MLP."""
        c = self.config
        y = y if query is None else self._linear(_under(w, "mixer.output."), query * y)
        y = ACTIVATIONS[c.activation](y)
        if c.gate:
            y = F.glu(self._linear(_under(w, "gate."), _dropped(y, masks[0])), -1)
        x = x + _dropped(y, masks[1])
        x = x if c.prenorm else _norm(_under(w, "norm."), x)
        if not c.mlp:
            return x
        y = _norm(_under(w, "mlp_norm."), x) if c.prenorm else x
        y = _dropped(F.gelu(self._linear(_under(w, "wide."), y)), masks[2])
        x = x + _dropped(self._linear(_under(w, "narrow."), y), masks[3])
        return x if c.prenorm else _norm(_under(w, "mlp_norm."), x)

    def _scan(self, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Compute the S4D layers of all models, M models of H channels, as one scan of M·H channels."""
        parts = w["w"].split([count for _, count in self.maps])
        real = torch.cat([map(part) for (map, _), part in zip(self.maps, parts, strict=True)])
        step = w["log_dt"].exp()[..., None]
        decay, gain = self._discretize(torch.complex(real, w["frequency"]), step)
        readout = 2 * torch.view_as_complex(w["C"].contiguous())
        flat = x.flatten(2).to(torch.promote_types(x.dtype, real.dtype))
        decay, gain, readout = (part.flatten(0, 1) for part in (decay, gain, readout))
        y, _ = ssm_scan(flat, decay, gain, readout, w["D"].flatten())
        return y.unflatten(2, x.shape[2:])

    def _linear(self, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Apply a linear map with K outputs to x (B, T, M, H), with one matrix for each of the M models; return (B, T,
        M, K).
        """
        weight = w["weight"].to(self._dtype or w["weight"].dtype)
        rows = x.flatten(0, 1).transpose(0, 1).to(weight.dtype)
        product = (rows @ weight.mT).to(w["bias"].dtype) + w["bias"][:, None]
        return product.transpose(0, 1).unflatten(0, x.shape[:2])


def _dropped(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def _runs(maps: Iterable[Reparameterization]) -> list[tuple[Reparameterization, int]]:
    """Group consecutive equal maps. Return each map together with the number of its repetitions, so that the map can be
    applied once per group.
    """
    found: list[tuple[Reparameterization, int]] = []
    for map in maps:
        if found and found[-1][0] == map:
            found[-1] = (map, found[-1][1] + 1)
        else:
            found.append((map, 1))
    return found


def _under(w: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}


def _norm(w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return torch.addcmul(w["bias"], F.layer_norm(x, x.shape[-1:]), w["weight"])
