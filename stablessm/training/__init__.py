"""Training of models; a killed run resumes to exactly the same weights, and a divergence is detected and explained."""

from stablessm.training.config import TrainingConfig
from stablessm.training.divergence import DivergenceReport
from stablessm.training.evaluate import evaluate
from stablessm.training.folder import settings_of
from stablessm.training.forecast import Forecast, forecast_errors
from stablessm.training.interrupt import Interrupted
from stablessm.training.loggers import Logger
from stablessm.training.loop import train
from stablessm.training.perplexity import Perplexity, perplexity
from stablessm.training.predict import Predictions, TrainedModel
from stablessm.training.ranks import Ranks, joined
from stablessm.training.result import TrainingResult
from stablessm.training.status import TrainingStatus, trainings

__all__ = [
    "DivergenceReport",
    "Forecast",
    "Interrupted",
    "Logger",
    "Perplexity",
    "Predictions",
    "Ranks",
    "TrainedModel",
    "TrainingConfig",
    "TrainingResult",
    "TrainingStatus",
    "evaluate",
    "forecast_errors",
    "joined",
    "perplexity",
    "settings_of",
    "train",
    "trainings",
]
