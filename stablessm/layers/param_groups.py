"""Division of parameters into groups for optimizers: recurrent parameters and all others."""

from __future__ import annotations

from typing import Any

from torch import nn

from stablessm._checked import NotNegative, checked


@checked
def param_groups(
    model: nn.Module, lr: NotNegative, *, recurrent_lr: NotNegative | None = None, weight_decay: NotNegative = 0.0
) -> list[dict[str, Any]]:
    """Divide parameters into groups for an optimizer; the recurrent group has its own learning rate and no weight
    decay.

    Weight decay would pull eigenvalues to the value of the map at w = 0, which is arbitrary. Recurrent parameters are
    those that a module lists in its attribute ``recurrent_parameters``; your own modules may have this attribute too.

    Args:
        model: any module, with or without layers of this package.
        lr: learning rate.
        recurrent_lr: learning rate of the recurrent parameters (default: ``lr``; StableSSM app. C.2: 0.004 to 0.005).
        weight_decay: weight decay of all other parameters.

    >>> import torch, stablessm as ssm
    >>> groups = param_groups(ssm.LRU(1, 4, 1), 1e-2, recurrent_lr=1e-3, weight_decay=0.1)
    >>> [(group["name"], len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
    [('other', 3, 0.01, 0.1), ('recurrent', 2, 0.001, 0.0)]
    >>> optimizer = torch.optim.AdamW(groups)
    """
    recurrent_lr = lr if recurrent_lr is None else recurrent_lr
    recurrent = {
        id(getattr(module, name)) for module in model.modules() for name in getattr(module, "recurrent_parameters", ())
    }
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = []
    for name, rate, decay in (("other", lr, weight_decay), ("recurrent", recurrent_lr, 0.0)):
        params = [p for p in trainable if (id(p) in recurrent) == (name == "recurrent")]
        groups.append({"name": name, "params": params, "lr": rate, "weight_decay": decay})
    return [group for group in groups if group["params"]]
