"""The engine in C++: envfleet._native._extension is the compiled module."""

from envfleet._native._extension import *  # noqa: F403 (its names are in __init__.pyi)
