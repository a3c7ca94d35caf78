"""For authors of envs: check_env() tells what would break theirs in a pool."""

from envfleet.testing.env_check import check_env
from envfleet.testing.report import EnvCheckError, EnvReport, Finding

__all__ = ["EnvCheckError", "EnvReport", "Finding", "check_env"]
