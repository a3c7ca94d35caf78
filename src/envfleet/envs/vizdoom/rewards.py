"""Rewards from changes of game variables, as EnvPool gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# For a rise by one, and for a fall by one (which is subtracted: a negative number costs).
REWARD_CONFIG: dict[str, tuple[float, float]] = {
    "FRAGCOUNT": (1.0, -1.5),
    "KILLCOUNT": (1.0, 0.0),
    "DEATHCOUNT": (-0.75, 0.75),
    "HITCOUNT": (0.01, -0.01),
    "DAMAGECOUNT": (0.003, -0.003),
    "HEALTH": (0.005, -0.003),
    "ARMOR": (0.005, -0.001),
    **{f"WEAPON{k}": (0.02, -0.01) for k in (0, 1, 2)},
    **{f"WEAPON{k}": (0.1, -0.05) for k in (3, 4, 5)},
    **{f"WEAPON{k}": (0.2, -0.1) for k in (6, 7)},
    **{f"AMMO{k}": (0.0002, -0.0001) for k in (0, 1, 2)},
    **{f"AMMO{k}": (0.001, -0.0005) for k in (3, 4, 5)},
    **{f"AMMO{k}": (0.002, -0.001) for k in (6, 7)},
}
WEAPON_REWARDS: dict[int, float] = {0: 2e-4, 1: 2e-4, 2: 2e-4, 3: 1e-3, 4: 1e-3, 5: 1e-3, 6: 2e-3, 7: 2e-3}

# A rocket hits many at once; more than this in one step does not count.
_LARGEST_RISE = {"DAMAGECOUNT": 200.0, "HITCOUNT": 5.0}
# The engine counts these on from episode to episode.
_COUNTED_ON = ("HITCOUNT", "DAMAGECOUNT", "DEATHCOUNT")


class Score:
    """The game variables of one player through an episode, and what their changes are worth."""

    def __init__(
        self,
        names: Sequence[str],
        reward_config: Mapping[str, Sequence[float]],
        weapon_rewards: Mapping[int, float],
        weapon_duration: int,
    ) -> None:
        self._names = list(names)
        self._worth: list[tuple[str, float, float]] = []
        for name in names:
            if name in reward_config:
                rise, fall = reward_config[name]
                self._worth.append((name, float(rise), float(fall)))
        self._weapon_rewards = dict(weapon_rewards)
        self._weapon_duration = weapon_duration
        self.values: dict[str, float] = {}
        self._offsets: dict[str, float] = {}
        self._weapon = -1
        self._weapon_steps = 0

    def begin(self, raw: Sequence[float]) -> None:
        """An episode begins with these values."""
        values = dict(zip(self._names, raw, strict=True))
        self._offsets = {name: values[name] for name in _COUNTED_ON if name in values}
        self.values = {}
        self.values = self._cleaned(values)
        self._weapon, self._weapon_steps = -1, 0

    def step(self, raw: Sequence[float]) -> float:
        """The reward of a step after which these are the values."""
        before = self.values
        now = self.values = self._cleaned(dict(zip(self._names, raw, strict=True)))
        reward = 0.0
        for name, rise, fall in self._worth:
            change = now[name] - before[name]
            if change > 0:
                reward += min(change, _LARGEST_RISE.get(name, change)) * rise
            elif change < 0:
                reward -= change * fall
        weapon = int(now.get("SELECTED_WEAPON", -1))
        self._weapon_steps = self._weapon_steps + 1 if weapon == self._weapon else 1
        self._weapon = weapon
        if self._weapon_steps >= self._weapon_duration and now.get("SELECTED_WEAPON_AMMO", 0.0) > 0:
            reward += self._weapon_rewards.get(weapon, 0.0)
        return reward

    def _cleaned(self, values: dict[str, float]) -> dict[str, float]:
        for name, offset in self._offsets.items():
            values[name] -= offset
        if values.get("HEALTH", 0.0) < 0:  # the engine's sign for a player who is not in the game just now
            values["HEALTH"] = self.values.get("HEALTH", 100.0)
        return values
