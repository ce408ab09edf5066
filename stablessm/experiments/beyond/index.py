"""Lists the experiments on questions that the papers do not ask, in the order in which ``stablessm list``
shows them.
"""

from stablessm.experiments.beyond.activations import experiment as activations
from stablessm.experiments.beyond.approximation import experiment as approximation
from stablessm.experiments.beyond.architectures import experiment as architectures
from stablessm.experiments.beyond.ett import experiment as ett
from stablessm.experiments.beyond.gated import experiment as gated
from stablessm.experiments.beyond.language import experiment as language
from stablessm.experiments.beyond.nonlinear import experiment as nonlinear
from stablessm.experiments.beyond.precision import experiment as precision

EXPERIMENTS = tuple(
    figure.EXPERIMENT
    for figure in (precision, architectures, activations, nonlinear, approximation, gated, ett, language)
)
