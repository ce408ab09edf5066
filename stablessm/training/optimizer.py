"""AdamW with separate settings for recurrent parameters; its moments are stored under the names of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from stablessm._errors import ArgumentError
from stablessm.layers.param_groups import param_groups
from stablessm.training.config import TrainingConfig
from stablessm.training.stack import Stack, over, stacked_name
from stablessm.training.trainee import placed, whole

Schedule: TypeAlias = Callable[[int], float]
"""Function from the number of a step to the factor by which learning rates are multiplied."""


class Optimizer:
    """A fused AdamW optimizer that never makes the CPU wait for the GPU.

    Recurrent parameters have their own learning rate and no weight decay (``stablessm.param_groups``).

    Args:
        model: The model to optimize.
        config: Learning rates, weight decay and clipping.
        schedule: Factor of the learning rate at each step (``TrainingConfig.rates``).
    """

    def __init__(self, model: nn.Module, config: TrainingConfig, schedule: Schedule) -> None:
        self._groups = self._grouped(model, config)
        if not self._groups:
            raise ArgumentError("model", "a parameter to train", "none")
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not parameter.is_floating_point():
                raise ArgumentError("model", "real parameters (complex numbers as pairs)", f"{name} {parameter.dtype}")
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._updated = self._updated_tensors()
        twins = {id(p): self._updated[name] for name, p in self._named.items()}
        groups = [{**group, "params": [twins[id(p)] for p in group["params"]]} for group in self._groups]
        self._adam = torch.optim.AdamW(groups, fused=True)
        self._most, self._schedule = config.clip, schedule

    def clear(self) -> None:
        """Set the gradients of all parameters to None."""
        for parameter in self._named.values():
            parameter.grad = None

    def clip(self) -> Tensor:
        """Clip the norm of the gradient of all parameters; return the norm before clipping. The norm covers the shards
        of all ranks.
        """
        with_gradient = [p for p in self._named.values() if p.grad is not None]
        norm = get_total_norm([p.grad for p in with_gradient if p.grad is not None], foreach=True)
        if self._most is not None:
            clip_grads_with_norm_(with_gradient, self._most, norm, foreach=True)
        return whole(norm)

    def step(self, step: int, skip: Tensor) -> None:
        """Update the weights with the learning rate of this step, unless ``skip`` (a tensor on the device) is 1."""
        for group, full in zip(self._adam.param_groups, self._groups, strict=True):
            group["lr"] = full["lr"] * self._schedule(step)
        self._adam.found_inf = skip  # type: ignore[attr-defined]  # as torch.amp.GradScaler does
        self._adam.step()

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments of AdamW by the name ``PARAMETER/MOMENT``, to be stored in a checkpoint."""
        state = {name: self._adam.state.get(p, {}) for name, p in self._updated.items()}
        return {f"{name}/{moment}": value for name, moments in state.items() for moment, value in moments.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the moments of AdamW from the tensors of a checkpoint."""
        for key, value in tensors.items():
            name, _, moment = key.rpartition("/")
            parameter = self._updated[name]
            there = placed(value, parameter) if value.shape == parameter.shape else value.to(parameter.device)
            self._adam.state.setdefault(parameter, {})[moment] = there

    def _grouped(self, model: nn.Module, config: TrainingConfig) -> list[dict[str, Any]]:
        return param_groups(model, config.lr, recurrent_lr=config.recurrent_lr, weight_decay=config.weight_decay)

    def _updated_tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors that AdamW updates, by name: the parameters themselves."""
        return self._named


@final
class StackedOptimizer(Optimizer):
    """AdamW for a :class:`~stablessm.training.stack.Stack` of models, each with its own learning rate and clipping.

    Gradients are clipped, and updates are skipped, separately for each model. AdamW is applied to tensors of zeros with
    learning rate 1 and no weight decay, so that these tensors become the updates. The updates of each model, times the
    learning rate of the model, are then added to its weights. The result equals AdamW, because an AdamW update is
    elementwise and proportional to the learning rate.

    Args:
        stack: The models to optimize.
        config: Learning rates, weight decay and clipping.
        schedule: Factor of the learning rate at each step.
        rates: Learning rate of each model (default: ``config.lr``). ``config.recurrent_lr`` is scaled in proportion.
        scales: Factors (models, …) of the learning rate of single weights, by parameter name (default: 1).
    """

    def __init__(
        self,
        stack: Stack,
        config: TrainingConfig,
        schedule: Schedule,
        rates: Sequence[float] | None = None,
        scales: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._stack = stack
        self._scales = {stacked_name(name): scale for name, scale in (scales or {}).items()}
        super().__init__(stack, config, schedule)
        device = next(iter(self._named.values())).device
        each = [config.lr] * len(stack.models) if rates is None else list(rates)
        self._factors = torch.tensor(each, dtype=torch.float64, device=device) / config.lr

    @torch.no_grad()
    def clip(self) -> Tensor:
        """Clip the norm of each model's gradient; return the norms before clipping, (replicas,)."""
        gradients = [p.grad for p in self._named.values() if p.grad is not None]
        norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        if self._most is not None:
            shorter = (self._most / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(over(shorter, gradient))
        return norm

    @torch.no_grad()
    def step(self, step: int, skip: Tensor) -> None:
        """Update the weights of every model whose entry of ``skip`` (replicas,) is 0."""
        for name, parameter in self._named.items():
            update = self._updated[name].zero_()
            gradient = parameter.grad
            update.grad = None if gradient is None else torch.where(over(skip, gradient) > 0, 0.0, gradient)
        self._adam.step()
        for group in self._groups:
            rates = self._factors * (group["full"] * self._schedule(step)) * (1 - skip)
            for name in group["names"]:
                parameter = self._named[name]
                own = over(rates, parameter) * self._scales.get(name, 1.0)
                parameter.mul_(1 - own * group["decay"]).addcmul_(own, self._updated[name])

    def _grouped(self, model: nn.Module, config: TrainingConfig) -> list[dict[str, Any]]:
        first = self._stack.models[0]
        names = {id(p): stacked_name(name) for name, p in first.named_parameters()}
        stacked = dict(model.named_parameters())
        found = []
        for group in super()._grouped(first, config):
            own = [names[id(p)] for p in group["params"]]
            plain = {"params": [stacked[name] for name in own], "lr": 1.0, "weight_decay": 0.0}
            found.append({**plain, "names": own, "full": group["lr"], "decay": group["weight_decay"]})
        return found

    def _updated_tensors(self) -> Mapping[str, Tensor]:
        """Return tensors of zeros, by parameter name, which AdamW updates instead of the parameters."""
        return {name: torch.zeros_like(p) for name, p in self._named.items()}
