"""Experiments of IAT: Inverse Approximation Theory for Nonlinear Recurrent Neural Networks."""
