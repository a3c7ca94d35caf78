"""make() and its siblings: from an env id, class or factory to a pool behind the api that a user asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, overload

from envfleet.apis.gymnasium import GymnasiumPool, make_gymnasium
from envfleet.building.pools import Env, make_pool, with_pool_options, with_signature
from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import flag_option
from envfleet.core.options import pool_options

if TYPE_CHECKING:
    from envfleet.apis.dm import DmPool
    from envfleet.apis.gym import GymPool
    from envfleet.apis.pettingzoo import AgentsPool, PlayerRowsPool

P = ParamSpec("P")


class _Make(Protocol[P]):
    @overload
    def __call__(
        self, task_id: Env, env_type: Literal["gymnasium"] = "gymnasium", *args: P.args, **kwargs: P.kwargs
    ) -> GymnasiumPool: ...
    @overload
    def __call__(self, task_id: Env, env_type: Literal["gym"], *args: P.args, **kwargs: P.kwargs) -> GymPool: ...
    @overload
    def __call__(self, task_id: Env, env_type: Literal["dm"], *args: P.args, **kwargs: P.kwargs) -> DmPool: ...


class _MakePettingZoo(Protocol[P]):
    @overload
    def __call__(
        self,
        env: Any,
        layout: Literal["agents"] = "agents",
        max_num_players: int | None = None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AgentsPool: ...
    @overload
    def __call__(
        self,
        env: Any,
        layout: Literal["rows"],
        max_num_players: int | None = None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> PlayerRowsPool: ...


def _make_with(options: Callable[P, object]) -> Callable[[Callable[..., Any]], _Make[P]]:
    return lambda function: with_signature(function, options)


def _make_pettingzoo_with(options: Callable[P, object]) -> Callable[[Callable[..., Any]], _MakePettingZoo[P]]:
    return lambda function: with_signature(function, options)


@_make_with(pool_options)
def make(task_id: Env, env_type: str = "gymnasium", **options: Any) -> GymnasiumPool | GymPool | DmPool:
    """Make a pool of num_envs envs behind the api that env_type names: "gymnasium", "gym" or "dm".

    task_id: a native id, any id of Gymnasium, a class, a factory, or a list with one factory per env.
    **options: those listed below; all other keywords are parameters of the env. Native envs accept a list of num_envs
    values for each parameter, Python envs a list of dicts as env_kwargs.
    """
    if env_type == "gymnasium":
        return make_gymnasium(task_id, **options)
    if env_type == "gym":
        return make_gym(task_id, **options)
    if env_type == "dm":
        return make_dm(task_id, **options)
    raise ConfigError(f"env_type expected 'gymnasium', 'gym' or 'dm', got {env_type!r}")


@with_pool_options(pool_options)
def make_gym(task_id: Env, gym_reset_return_info: bool = False, **options: Any) -> GymPool:
    """Make a pool with the old gym's API: obs = reset(); obs, rew, done, info = step(action). Options: see make()."""
    from envfleet.apis.gym import GymPool

    returns_info = flag_option("gym_reset_return_info", gym_reset_return_info)  # before anything is built
    return GymPool(make_gymnasium(task_id, **options), returns_info)


@with_pool_options(pool_options)
def make_dm(task_id: Env, **options: Any) -> DmPool:
    """Make a pool with dm_env's API: TimeSteps of arrays. Options: see make()."""
    from envfleet.apis.dm import DmPool

    return DmPool(make_pool(task_id, **options))


@_make_pettingzoo_with(pool_options)
def make_pettingzoo(
    env: Any, layout: Literal["agents", "rows"] = "agents", max_num_players: int | None = None, **options: Any
) -> AgentsPool | PlayerRowsPool:
    """Make a pool of PettingZoo's parallel multi-agent envs; see envfleet.apis.pettingzoo. Options: see make()."""
    from envfleet.apis.pettingzoo import make_pettingzoo as make_players

    return make_players(env, layout=layout, max_num_players=max_num_players, **options)
