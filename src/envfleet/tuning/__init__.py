"""tune(): which backend, how many workers and which batch size are fastest for an env on this machine."""

from envfleet.tuning.report import Case, Tuning
from envfleet.tuning.search import tune

__all__ = ["Case", "Tuning", "tune"]
