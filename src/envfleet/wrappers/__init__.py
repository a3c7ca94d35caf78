"""Wrappers that process whole batches.

They wrap pools of envfleet.make(), in every autoreset mode, with step() as with send() and recv(). Those that
have the name of a Gymnasium wrapper take its arguments; docs/wrappers.md explains the differences.
"""

from envfleet.wrappers.base import BatchRows, PoolWrapper, WrapperState
from envfleet.wrappers.episode_statistics import RecordEpisodeStatistics
from envfleet.wrappers.frame_stack import FrameStackObservation
from envfleet.wrappers.normalize import NormalizeObservation, NormalizeReward
from envfleet.wrappers.recording import RecordGrid, record
from envfleet.wrappers.rewards import ClipReward

__all__ = [
    "BatchRows",
    "ClipReward",
    "FrameStackObservation",
    "NormalizeObservation",
    "NormalizeReward",
    "PoolWrapper",
    "RecordEpisodeStatistics",
    "RecordGrid",
    "WrapperState",
    "record",
]
