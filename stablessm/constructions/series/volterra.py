"""Construction of Volterra series as recurrent models, from kernels or from data."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from stablessm._arguments import real_number, whole_number
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError, NumericalError, quoted
from stablessm.constructions._checks import real_array
from stablessm.constructions.series import _identify
from stablessm.constructions.series._fit import Factors, fit
from stablessm.constructions.series._kernels import SampledKernel, Source
from stablessm.constructions.series._measure import measure, ratio, run

if TYPE_CHECKING:
    from stablessm.constructions.series.model import VolterraSSM
    from stablessm.reparam import Reparameterization

_ATTEMPTS = 4


@final
class _Construction:
    """Constructs Volterra series (SSM-UA eq. 18) as recurrent models, from kernels or, with ``identify``, from data.

    >>> model = volterra({2: lambda a, b: 1 / (1 + a + b) ** 2}, horizon=1000, tol=1e-3)
    >>> model.rank, model.states, model.error < 1e-3
    ({2: 6}, 7, True)
    """

    @checked
    def __call__(
        self,
        kernels: Mapping[int, Source | float],
        horizon: Size | None = None,
        *,
        tol: float = 1e-3,
        dt: float = 1.0,
        map: str | Reparameterization = "best",
    ) -> VolterraSSM:
        """Construct a recurrent model with the given Volterra kernels, up to a relative error of ``tol``.

        The series is y_k = h_0 + Σ_n dt^n Σ_{τ_1..τ_n = 0..k} h_n(τ_1 dt, …, τ_n dt) Π_j x_{k - τ_j}, as in
        :class:`stablessm.targets.Volterra`. Only the symmetric part of h_n affects the output. This part is
        approximated by

            ĥ_n(t_1, …, t_n) = Σ_r c_r Π_j φ_r(t_j),   φ_r(t) = Re Σ_i w_ri e^{s_i t},

        which is a kernel of finite rank (SSM-UA eq. 57). All factors of term r are the same function φ_r, so that the
        term is the n-th power of a convolution. All φ_r have the same rates s_i and are the channels of one recurrence.
        The numbers of states and terms do not depend on the horizon once the kernels have decayed.

        Args:
            kernels: the kernel of each order from 1 to 3: a function of n = order arrays of times of the same shape, or
                an array of samples of shape (horizon + 1,) * order. The entry for order 0 is a number, the constant
                h_0.
            horizon: number of steps (default: from the arrays).
            tol: largest allowed ``error``: the largest ‖h_n - ĥ_n‖ / ‖h_n‖ of all orders n (Frobenius norm over steps
                0..horizon), or the relative root mean square error of outputs for white noise, if that is larger.
            dt: time between samples, in any unit.
            map: reparameterization of the eigenvalues.

        A kernel with a kink on its diagonal, such as e^{-|a-b|}, requires many terms, because its singular values
        decrease slowly. A kernel that requires more than 200 states raises a NumericalError. After the horizon the
        exponentials continue.

        Arrays, and functions on grids of up to 3e6 values, are fitted and compared at all grid points. A function on a
        larger grid is fitted at some steps, whose distances grow with the lag, and compared at other steps, at 1e5
        random points and on the diagonal. ``kernel_errors`` are then estimates, and a feature of the kernel that is
        narrower than the distance of the steps can be missed.

        >>> import torch
        >>> model = volterra({1: lambda t: 0.9**t, 2: lambda a, b: 0.8 ** (a + b)}, horizon=100)
        >>> y, state = model(torch.ones(1, 3, 1, dtype=torch.float64))
        >>> [round(value, 2) for value in y.flatten().tolist()]             # 1 + 1, 1.9 + 1.8², 2.71 + 2.44²
        [2.0, 5.14, 8.66]
        """
        started = time.perf_counter()
        constant, sampled = _checked(kernels, horizon, dt)
        budget = tol = real_number("tol", tol, 0, 1)
        for _ in range(_ATTEMPTS):
            model = _model(fit(sampled, budget), constant, map)
            measure(model, sampled)
            if model.error <= tol:
                model.seconds = time.perf_counter() - started
                return model
            budget /= 2
        raise NumericalError(
            f"the smallest error of kernels and outputs that was found is {model.error:.2g}, above tol = {tol:.2g}",
            "use a larger tol",
        )

    def identify(
        self,
        x: Any,
        y: Any,
        *,
        memory: int,
        order: int = 2,
        states: int | None = None,
        held_out: float = 0.2,
        dt: float = 1.0,
        map: str | Reparameterization = "best",
    ) -> VolterraSSM:
        """Estimate the Volterra kernels of an unknown system from records of its input and output.

        Kernels are sums of products of a few exponentials. The rates of the exponentials are found by variable
        projection from several initial values; given the rates, h_0 and all coefficients follow by ridge regression.
        The number of states, the initial values and the ridge parameter are chosen by four-fold cross-validation.

        Args:
            x, y: one record (T,), or several of equal length, (B, T) or (B, T, 1).
            memory: number of steps that the system remembers. The first ``memory`` steps of a record are not fitted.
            order: highest order, 1 to 3.
            states: number of real states (default: chosen from 1, 2, 3, 4, 6, 8).
            held_out: fraction of each record, at its end, that is not fitted.
            dt: time between samples, in any unit.
            map: reparameterization of the eigenvalues.

        The model does not depend on the units of x and y. If y is constant, the model is constant.

        Returns:
            A model as ``volterra`` returns it. Its ``output_error`` is the root mean square error on the held-out steps
            divided by the standard deviation of y there; ``kernel_errors`` is empty.

        >>> rng = np.random.default_rng(0)
        >>> x = rng.standard_normal(2000)
        >>> z = np.convolve(x, 0.8 ** np.arange(100))[:2000]
        >>> model = volterra.identify(x, z + 0.5 * z**2, memory=40, states=1)
        >>> round(model.layer.eigenvalues().item(), 4), model.error < 1e-3
        (0.8, True)
        """
        started = time.perf_counter()
        records = _records(x, y, memory, order, held_out)
        states = None if states is None else whole_number("states", states, 1)
        dt = real_number("dt", dt, 0)
        if not records.x.any():
            raise ArgumentError("x", "an input that is not zero", "zeros")
        model = _model(*_identify.identify(records, states, dt), map)
        outputs = run(model, records.x)[:, records.fitted :]
        truth = records.y[:, records.fitted :]
        unit = float(np.abs(truth).max()) or 1.0  # the squares of large numbers would overflow
        off, spread = (float(np.linalg.norm(each / unit)) for each in (outputs - truth, truth - truth.mean()))
        model.output_error = ratio(off, spread if truth.min() < truth.max() else 0.0)
        model.seconds = time.perf_counter() - started
        return model


volterra = _Construction()
"""Constructs Volterra series: call ``volterra(kernels)``, or ``volterra.identify(x, y)`` with data."""


def _model(factors: Factors, constant: float, map: str | Reparameterization) -> VolterraSSM:
    import torch

    from stablessm.constructions.series.model import VolterraSSM

    layer = factors.sum.to_layer(map, dtype=torch.float64)
    model = VolterraSSM(layer, factors.orders, factors.weights, constant, factors.sum.dt)
    model.condition = factors.condition
    return model


def _checked(
    kernels: Mapping[int, Source | float], horizon: int | None, dt: float
) -> tuple[float, list[SampledKernel]]:
    """Check the kernels that the caller gave; return the constant h_0 and the kernels of order 1 to 3."""
    if not isinstance(kernels, Mapping) or not set(kernels) <= {0, 1, 2, 3} or not set(kernels) - {0}:
        found = sorted(kernels) if isinstance(kernels, Mapping) else type(kernels).__name__
        raise ArgumentError("kernels", "a kernel for at least one of the orders 1, 2, 3 (0: a number)", found)
    dt = real_number("dt", dt, 0)
    constant = real_number("kernels[0]", kernels.get(0, 0.0), -math.inf)
    sources: dict[int, Source] = {
        order: source if callable(source) else real_array(f"kernels[{order}]", source)
        for order, source in sorted(kernels.items())
        if order
    }
    if horizon is None:
        lengths = [len(source) for source in sources.values() if isinstance(source, np.ndarray) and source.ndim]
        if not lengths:
            raise ArgumentError("horizon", "a number of steps, since no kernel is an array", "None")
        horizon = lengths[0] - 1
    horizon = whole_number("horizon", horizon, 1)
    for order, source in sources.items():
        if isinstance(source, np.ndarray) and source.shape != (horizon + 1,) * order:
            raise ArgumentError(f"kernels[{order}]", f"shape {(horizon + 1,) * order}", f"shape {source.shape}")
    return constant, [SampledKernel(n, horizon, dt, source) for n, source in sources.items()]


def _records(x: Any, y: Any, memory: int, order: int, held_out: float) -> _identify.Records:
    arrays = []
    for name, values in (("x", x), ("y", y)):
        array = real_array(name, values)
        array = array[None] if array.ndim == 1 else array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
        if array.ndim != 2 or not array.size:
            raise ArgumentError(name, "(time,), (batch, time) or (batch, time, 1), not empty", f"shape {array.shape}")
        if not np.isfinite(array).all():
            raise ArgumentError(name, "finite numbers", "NaN or infinity")
        arrays.append(array)
    if arrays[0].shape != arrays[1].shape:
        raise ArgumentError("y", f"shape {arrays[0].shape} (as x)", f"shape {arrays[1].shape}")
    if order not in (1, 2, 3):
        raise ArgumentError("order", "1, 2 or 3", quoted(order))
    held_out = real_number("held_out", held_out, 0, 1)
    steps = arrays[0].shape[1]
    fitted = steps - max(1, round(held_out * steps))
    memory = whole_number("memory", memory, 1)
    if memory >= fitted:
        expected = f"a whole number of steps from 1 to {fitted - 1} (of {steps} steps, {fitted} are fitted)"
        raise ArgumentError("memory", expected, quoted(memory))
    return _identify.Records(arrays[0], arrays[1], memory, int(order), fitted)
