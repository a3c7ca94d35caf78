"""make_pettingzoo(): from an id, module, class or factory of a multi-agent env to a pool of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, overload

from envfleet.apis.pettingzoo.env import PlayersEnv
from envfleet.apis.pettingzoo.pools import AgentsPool, PlayerRowsPool
from envfleet.building.pools import make_pool
from envfleet.core.backends import AUTO, runs_native_only
from envfleet.core.errors import ConfigError, MissingExtraError, UnknownEnvError
from envfleet.core.family import is_installed
from envfleet.families.atari.roms import rom_folder
from envfleet.families.vizdoom.multiplayer import MULTIPLAYER_SCENARIOS, MultiplayerEnv, multiplayer_env

_ATARI = "atari/"  # PettingZoo's games for several players, on multi_agent_ale_py

# What make_pettingzoo() takes: an id of pettingzoo's registry, a module such as rps_v2, a class or
# factory, or a list of factories, one for each env.
MultiAgentEnv = str | ModuleType | Callable[..., Any] | Sequence[Callable[[], Any]]


@overload
def make_pettingzoo(
    env: MultiAgentEnv,
    *,
    layout: Literal["agents"] = "agents",
    max_num_players: int | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> AgentsPool: ...
@overload
def make_pettingzoo(
    env: MultiAgentEnv,
    *,
    layout: Literal["rows"],
    max_num_players: int | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> PlayerRowsPool: ...


def make_pettingzoo(
    env: MultiAgentEnv,
    *,
    layout: str = "agents",
    max_num_players: int | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> AgentsPool | PlayerRowsPool:
    """Make a pool of multi-agent envs: ParallelEnvs, or AECEnvs that PettingZoo can convert.

    Args:
        env: An id of PettingZoo's registry, a module such as rps_v2, a class, a factory, or a list of factories.
        layout: "agents" returns dicts by agent of arrays over the envs, "rows" one row per player.
        max_num_players: The largest number of players in one step of an env; None for all possible agents.
        wrappers: Callables that wrap the multi-agent env, the first one innermost.
        render_mode: Passed to the env.
        **options: Options of envfleet.make().
    """
    if layout not in ("agents", "rows"):
        raise ConfigError(f"layout expected 'agents' or 'rows', got {layout!r}")
    wrappers = wrappers or ()
    if not isinstance(wrappers, (list, tuple)) or not all(map(callable, wrappers)):
        raise ConfigError(f"wrappers expected a list of callables that take an env and return one, got {wrappers!r}")
    if runs_native_only(options.get("backend", AUTO)):
        raise ConfigError("backend expected 'serial', 'threads' or 'processes' for multi-agent envs, got 'native'")

    def factory(source: Any) -> PlayersFactory:
        return PlayersFactory(_source(source), max_num_players, tuple(wrappers), render_mode)

    if isinstance(env, str) and env.startswith(_ATARI) and options.get("backend", AUTO) == AUTO:
        options["backend"] = "processes"  # one env as well: a fault in the emulator ends its process
    given = [factory(own) for own in env] if isinstance(env, (list, tuple)) else factory(env)
    pool = make_pool(given, **options)
    try:
        return AgentsPool(pool) if layout == "agents" else PlayerRowsPool(pool)
    except BaseException:
        pool.close()
        raise


@dataclass(frozen=True)
class PlayersFactory:
    """Builds one PlayersEnv in its worker."""

    source: Callable[..., Any]
    max_num_players: int | None
    wrappers: tuple[Callable[[Any], Any], ...]
    render_mode: str | None

    @property
    def __name__(self) -> str:
        return getattr(self.source, "__name__", type(self.source).__name__)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The multi-agent env's constructor, whose signature counts."""
        return self.source

    def __call__(self, **kwargs: Any) -> PlayersEnv:
        """Build the env with these parameters."""
        if self.render_mode is not None:
            kwargs.setdefault("render_mode", self.render_mode)
        env = as_parallel(self.source(**kwargs))
        for wrapper in self.wrappers:
            env = wrapper(env)
        return PlayersEnv(env, self.max_num_players)


@dataclass(frozen=True)
class _Registered:
    """An env of PettingZoo's registry. It carries the spec, because a worker's registry may not have it."""

    kind: str
    spec: Any
    defaults: Mapping[str, Any]

    @property
    def __name__(self) -> str:
        return str(self.spec.id)

    def __call__(self, **kwargs: Any) -> Any:
        """Build the env with these parameters."""
        return _pettingzoo().make(self.kind, self.spec, **{**self.defaults, **kwargs})


def as_parallel(env: Any) -> Any:
    """Return a ParallelEnv unchanged, or convert an AECEnv."""
    if isinstance(env, MultiplayerEnv):
        return env  # has the same API without needing pettingzoo
    pettingzoo = _pettingzoo()
    if isinstance(env, pettingzoo.AECEnv):
        if not env.metadata.get("is_parallelizable", False):
            raise ConfigError(
                f"expected a ParallelEnv, or an AECEnv with metadata['is_parallelizable'], got {env}; "
                "turn-based games cannot step all players at once"
            )
        from pettingzoo.utils.conversions import aec_to_parallel

        return _without_round_trip(aec_to_parallel(env))
    if not isinstance(env, pettingzoo.ParallelEnv) and not hasattr(env, "possible_agents"):
        raise ConfigError(
            f"expected a pettingzoo.ParallelEnv or AECEnv, got {type(env).__name__}; "
            "use envfleet.make() for single-agent envs"
        )
    return _without_round_trip(env)


def _without_round_trip(env: Any) -> Any:
    """Return the ParallelEnv inside one that PettingZoo converted to an AECEnv and back, as its Atari games are.

    The conversions take as long as a game's step. The wrappers between them check what a pool checks itself.
    """
    from pettingzoo.utils import conversions, wrappers

    if type(env) is not conversions.aec_to_parallel_wrapper:
        return env
    inner = env.aec_env
    while type(inner) in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper):
        inner = inner.env
    return inner.env if type(inner) is conversions.parallel_to_aec_wrapper else env


def _source(env: Any) -> Callable[..., Any]:
    if isinstance(env, str) and env in MULTIPLAYER_SCENARIOS:
        return multiplayer_env(env)
    if env is MultiplayerEnv:
        return MultiplayerEnv
    pettingzoo = _pettingzoo()
    if isinstance(env, str):
        return _registered(env)
    if isinstance(env, ModuleType):
        made = getattr(env, "parallel_env", None) or getattr(env, "env", None)
        if not callable(made):
            raise ConfigError(f"expected a module with parallel_env() or env(), as in PettingZoo, got {env!r}")
        return made  # type: ignore[no-any-return]  # callable() tells no signature
    if isinstance(env, (pettingzoo.ParallelEnv, pettingzoo.AECEnv)):
        raise ConfigError(
            f"make_pettingzoo() expected an id, a module, a class or a factory, got the env {env}; "
            "pass a function that returns one: each worker builds its own envs"
        )
    if not callable(env):
        raise UnknownEnvError(
            f"make_pettingzoo() expected an id such as 'butterfly/knights_archers_zombies_v11', a module, a class or "
            f"a factory, got {type(env).__name__}: {env!r}"
        )
    return env  # type: ignore[no-any-return]  # likewise


def _registered(env_id: str) -> _Registered:
    pettingzoo = _pettingzoo()
    if not hasattr(pettingzoo, "spec"):
        raise ConfigError(
            f"ids need PettingZoo with a registry (tested: 1.27), got {pettingzoo.__version__}; "
            "pass the module, such as pettingzoo.butterfly.pistonball_v6"
        )
    defaults = {}
    if env_id.startswith(_ATARI):
        for package in ("multi_agent_ale_py", "ale_py"):
            if not is_installed(package):
                raise MissingExtraError(package, "pettingzoo_atari", env_id)
        defaults["auto_rom_install_path"] = str(rom_folder())  # multi_agent_ale_py has no ROMs, ale-py has them
    reason: Exception | None = None
    for kind in ("parallel", "aec"):
        try:
            return _Registered(kind, pettingzoo.spec(kind, env_id), defaults)
        except Exception as error:  # pettingzoo's own kinds differ by version
            reason = reason or error
    own = " or ".join(MULTIPLAYER_SCENARIOS)
    raise UnknownEnvError(
        f"make_pettingzoo() expected an id of PettingZoo, or {own}, got {env_id!r}; PettingZoo raised: {reason}"
    )


def _pettingzoo() -> Any:
    try:
        import pettingzoo
    except ImportError as error:
        raise MissingExtraError("pettingzoo", "pettingzoo", "make_pettingzoo()") from error
    return pettingzoo
