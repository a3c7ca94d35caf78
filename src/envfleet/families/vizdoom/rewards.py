"""EnvPool's rewards for changes of game variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# The reward for an increase by one, and for a decrease by one (subtracted: a negative number is a penalty).
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

# A rocket hits many enemies at once; more than this in one step does not count.
_MAX_INCREASE = {"DAMAGECOUNT": 200.0, "HITCOUNT": 5.0}
# The engine does not reset these between episodes.
_CUMULATIVE = ("HITCOUNT", "DAMAGECOUNT", "DEATHCOUNT")


class Score:
    """The game variables of one player during an episode, and the rewards for their changes."""

    def __init__(
        self,
        names: Sequence[str],
        reward_config: Mapping[str, Sequence[float]],
        weapon_rewards: Mapping[int, float],
        weapon_duration: int,
    ) -> None:
        self._names = list(names)
        self._rewards: list[tuple[str, float, float]] = []
        for name in names:
            if name in reward_config:
                rise, fall = reward_config[name]
                self._rewards.append((name, float(rise), float(fall)))
        self._weapon_rewards = dict(weapon_rewards)
        self._weapon_duration = weapon_duration
        self.values: dict[str, float] = {}
        self._offsets: dict[str, float] = {}
        self._weapon = -1
        self._weapon_steps = 0

    def begin(self, raw: Sequence[float]) -> None:
        """Start an episode with these values."""
        values = dict(zip(self._names, raw, strict=True))
        self._offsets = {name: values[name] for name in _CUMULATIVE if name in values}
        self.values = {}
        self.values = self._normalized(values)
        self._weapon, self._weapon_steps = -1, 0

    def step(self, raw: Sequence[float]) -> float:
        """Return the reward of a step after which the variables have these values."""
        before = self.values
        now = self.values = self._normalized(dict(zip(self._names, raw, strict=True)))
        reward = 0.0
        for name, rise, fall in self._rewards:
            change = now[name] - before[name]
            if change > 0:
                reward += min(change, _MAX_INCREASE.get(name, change)) * rise
            elif change < 0:
                reward -= change * fall
        weapon = int(now.get("SELECTED_WEAPON", -1))
        self._weapon_steps = self._weapon_steps + 1 if weapon == self._weapon else 1
        self._weapon = weapon
        if self._weapon_steps >= self._weapon_duration and now.get("SELECTED_WEAPON_AMMO", 0.0) > 0:
            reward += self._weapon_rewards.get(weapon, 0.0)
        return reward

    def _normalized(self, values: dict[str, float]) -> dict[str, float]:
        for name, offset in self._offsets.items():
            values[name] -= offset
        if values.get("HEALTH", 0.0) < 0:  # the engine's value for a player who is not in the game at the moment
            values["HEALTH"] = self.values.get("HEALTH", 100.0)
        return values
