"""The experiment ``ext-precision``: what rounding the recurrent weights to fewer bits changes, for each map."""
