"""make_pettingzoo(): from what names a multi-agent env to a pool of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, overload

from envfleet.apis.pettingzoo.agents import AgentsPool
from envfleet.apis.pettingzoo.env import PlayersEnv
from envfleet.apis.pettingzoo.rows import PlayerRowsPool
from envfleet.envs.vizdoom.multiplayer import MULTIPLAYER_SCENARIOS, MultiplayerEnv, multiplayer_env
from envfleet.errors import ConfigError, MissingExtraError, UnknownEnvError
from envfleet.making.make import make_pool

# What make_pettingzoo() takes: an id of pettingzoo's registry, a module such as rps_v2, a class or
# factory, or a list of factories, one for each env.
MultiAgentEnv = str | ModuleType | Callable[..., Any] | Sequence[Callable[[], Any]]


@overload
def make_pettingzoo(
    env: MultiAgentEnv, *, layout: Literal["agents"] = "agents", max_num_players: int | None = None, **options: Any
) -> AgentsPool: ...
@overload
def make_pettingzoo(
    env: MultiAgentEnv, *, layout: Literal["rows"], max_num_players: int | None = None, **options: Any
) -> PlayerRowsPool: ...


def make_pettingzoo(
    env: MultiAgentEnv, *, layout: str = "agents", max_num_players: int | None = None, **options: Any
) -> AgentsPool | PlayerRowsPool:
    """A pool of multi-agent envs: ParallelEnvs, or AECEnvs that PettingZoo can make parallel.

    layout: "agents" gives dicts by agent of arrays over the envs, "rows" a row for each player.
    max_num_players: how many players may have a row in one step of an env; default: all possible
    agents. options: as make() has them; wrappers wrap the multi-agent env.
    """
    if layout not in ("agents", "rows"):
        raise ConfigError(f"layout expected 'agents' or 'rows', got {layout!r}")
    wrappers = options.pop("wrappers", None) or ()
    if not isinstance(wrappers, (list, tuple)) or not all(map(callable, wrappers)):
        raise ConfigError(f"wrappers expected a list of callables that take an env and give one, got {wrappers!r}")
    if options.get("backend", "auto") == "native":
        raise ConfigError("backend expected 'serial', 'threads' or 'processes' for multi-agent envs, got 'native'")
    # Known to the factory, not the pool: it builds the env that can take it.
    render_mode = options.pop("render_mode", None)

    def factory(source: Any) -> PlayersFactory:
        return PlayersFactory(_source(source), max_num_players, tuple(wrappers), render_mode)

    given = [factory(own) for own in env] if isinstance(env, (list, tuple)) else factory(env)
    pool = make_pool(given, **options)
    try:
        return AgentsPool(pool) if layout == "agents" else PlayerRowsPool(pool)
    except BaseException:
        pool.close()
        raise


@dataclass(frozen=True)
class PlayersFactory:
    """Builds one PlayersEnv where it will live."""

    source: Callable[..., Any]
    max_num_players: int | None
    wrappers: tuple[Callable[[Any], Any], ...]
    render_mode: str | None

    @property
    def __name__(self) -> str:
        return getattr(self.source, "__name__", type(self.source).__name__)

    def __call__(self, **kwargs: Any) -> PlayersEnv:
        """The env with these parameters."""
        if self.render_mode is not None:
            kwargs.setdefault("render_mode", self.render_mode)
        env = as_parallel(self.source(**kwargs))
        for wrapper in self.wrappers:
            env = wrapper(env)
        return PlayersEnv(env, self.max_num_players)


@dataclass(frozen=True)
class _Registered:
    """An env of pettingzoo's registry; the spec travels, for a worker knows only what ships with it."""

    kind: str
    spec: Any

    @property
    def __name__(self) -> str:
        return str(self.spec.id)

    def __call__(self, **kwargs: Any) -> Any:
        """The env with these parameters."""
        return _pettingzoo().make(self.kind, self.spec, **kwargs)


def as_parallel(env: Any) -> Any:
    """The env itself, or an AECEnv as a ParallelEnv."""
    if isinstance(env, MultiplayerEnv):
        return env  # of the same kind, and it needs no pettingzoo
    pettingzoo = _pettingzoo()
    if isinstance(env, pettingzoo.AECEnv):
        if not env.metadata.get("is_parallelizable", False):
            raise ConfigError(
                f"expected a ParallelEnv, or an AECEnv whose agents act all at once, got {env}, whose metadata has no "
                "is_parallelizable; turn-based games cannot step all players together"
            )
        from pettingzoo.utils.conversions import aec_to_parallel

        return aec_to_parallel(env)
    if not isinstance(env, pettingzoo.ParallelEnv) and not hasattr(env, "possible_agents"):
        raise ConfigError(
            f"expected a pettingzoo.ParallelEnv or AECEnv, got {type(env).__name__}; "
            "envs of one agent are made with envfleet.make()"
        )
    return env


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
            raise ConfigError(f"expected a module with parallel_env() or env(), as pettingzoo's have, got {env!r}")
        return made  # type: ignore[no-any-return]  # callable() tells no signature
    if isinstance(env, (pettingzoo.ParallelEnv, pettingzoo.AECEnv)):
        raise ConfigError(
            f"make_pettingzoo() expected an id, a module, a class or a factory, got the env {env}; "
            "pass a function that makes one: each worker builds its own"
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
            f"ids need a pettingzoo with a registry (1.27 is tested), got {pettingzoo.__version__}; "
            "pass the module, such as pettingzoo.butterfly.pistonball_v6"
        )
    reason: Exception | None = None
    for kind in ("parallel", "aec"):
        try:
            return _Registered(kind, pettingzoo.spec(kind, env_id))
        except Exception as error:  # pettingzoo's own kinds differ by version
            reason = reason or error
    own = " or ".join(MULTIPLAYER_SCENARIOS)
    raise UnknownEnvError(
        f"make_pettingzoo() expected an id of pettingzoo, or {own}, got {env_id!r}; it says: {reason}"
    )


def _pettingzoo() -> Any:
    try:
        import pettingzoo
    except ImportError as error:
        raise MissingExtraError("pettingzoo", "pettingzoo", "make_pettingzoo()") from error
    return pettingzoo
