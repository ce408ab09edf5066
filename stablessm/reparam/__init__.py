"""Reparameterizations: maps from a trainable weight to a stable eigenvalue or matrix, and criteria to compare them."""

from stablessm.reparam import matrix
from stablessm.reparam.base import Reparameterization
from stablessm.reparam.contract import ContractError, check
from stablessm.reparam.registry import get, names, register

__all__ = ["ContractError", "Reparameterization", "check", "get", "matrix", "names", "register"]
