"""The experiment ``ext-ett``: forecasts of ETTh1, an hourly series of measurements at an electricity transformer."""
