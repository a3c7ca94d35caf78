"""Families of environments: their ids, the parameters and rendering of native envs, and Python envs."""
