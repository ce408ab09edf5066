"""AdamW over a model's parameter groups, and its moments by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from stablessm._errors import ArgumentError
from stablessm.layers.param_groups import param_groups
from stablessm.training.config import TrainingConfig
from stablessm.training.schedule import rate
from stablessm.training.trainee import placed, whole


class Optimiser:
    """One fused AdamW step at a time, without waiting for the device.

    Recurrent parameters have their own learning rate and no weight decay (``stablessm.param_groups``).
    """

    def __init__(self, model: nn.Module, config: TrainingConfig, steps: int) -> None:
        groups = param_groups(model, config.lr, recurrent_lr=config.recurrent_lr, weight_decay=config.weight_decay)
        if not groups:
            raise ArgumentError("model", "a parameter to train", "none")
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not parameter.is_floating_point():
                raise ArgumentError("model", "real parameters (complex numbers as pairs)", f"{name} {parameter.dtype}")
        self._adam = torch.optim.AdamW(groups, fused=True)
        self._rates = [float(group["lr"]) for group in groups]
        self._names = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._config, self._steps = config, steps

    def clear(self) -> None:
        """Forget the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def clip(self) -> Tensor:
        """Clip the gradient of all parameters, over all ranks where they are in shards; its norm before."""
        with_gradient = [p for p in self._names.values() if p.grad is not None]
        norm = get_total_norm([p.grad for p in with_gradient if p.grad is not None], foreach=True)
        if self._config.clip is not None:
            clip_grads_with_norm_(with_gradient, self._config.clip, norm, foreach=True)
        return whole(norm)

    def step(self, step: int, skip: Tensor) -> None:
        """Update the weights at the rate of this step; not where ``skip`` is 1, which stays on the device."""
        factor = rate(step, self._steps, self._config.warmup)
        for group, full in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = full * factor
        self._adam.found_inf = skip  # type: ignore[attr-defined]  # as torch.amp.GradScaler tells a fused optimiser
        self._adam.step()

    def tensors(self) -> dict[str, Tensor]:
        """The moments, for a checkpoint: ``PARAMETER/MOMENT``."""
        state = {name: self._adam.state.get(p, {}) for name, p in self._names.items()}
        return {f"{name}/{moment}": value for name, moments in state.items() for moment, value in moments.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with the moments of a checkpoint."""
        for key, value in tensors.items():
            name, _, moment = key.rpartition("/")
            parameter = self._names[name]
            there = placed(value, parameter) if value.shape == parameter.shape else value.to(parameter.device)
            self._adam.state.setdefault(parameter, {})[moment] = there
