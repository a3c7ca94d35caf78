"""Toy text: FrozenLake's maps as text, Gymnasium's pictures for the native envs."""

from __future__ import annotations

from envfleet.envs.family import Family

FAMILY = Family("toy text", ())
