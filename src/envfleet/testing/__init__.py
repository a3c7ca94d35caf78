"""For authors of envs: check_env() reports what would break an env in a pool."""

from envfleet.testing.env_checker import check_env
from envfleet.testing.report import EnvCheckError, EnvReport, Finding

__all__ = ["EnvCheckError", "EnvReport", "Finding", "check_env"]
