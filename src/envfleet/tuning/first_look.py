"""What tune() finds out before it measures: the backends that can run the env, and how long one env takes."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.driving import Driver
from envfleet.errors import ConfigError
from envfleet.making.builders import recipe_for
from envfleet.making.native_envs import find_entry, takes_params
from envfleet.making.options import PYTHON_BACKENDS, Options, parse_options
from envfleet.making.python_envs import check_known
from envfleet.making.registry import Env, make_pool
from envfleet.tuning.budget import Budget, duration
from envfleet.tuning.candidates import DEFAULT_NATIVE_ENVS, backends_for
from envfleet.tuning.probe import Probe, probe_native, probe_python
from envfleet.tuning.report import counted


class FirstLook:
    """A look at the env.

    backends: those to measure. probes: one for each of them. notes: what was seen, for the report.
    """

    def __init__(
        self, env: Env, options: dict[str, Any], backends: Any, num_envs: int | None, cores: int, budget: Budget
    ) -> None:
        self._env = env
        self._options = options
        self._cores = cores
        self._budget = budget
        self.probes: dict[str, Probe] = {}
        self.notes: list[str] = []
        self.backends = self._look(backends, num_envs)

    @property
    def python_probe(self) -> Probe | None:
        """Of the env in Python, None when only the native backend is measured."""
        return next((probe for name, probe in self.probes.items() if name != "native"), None)

    def _look(self, given: Any, num_envs: int | None) -> tuple[str, ...]:
        entry = find_entry(self._env)
        sizes = {"num_envs": num_envs} if num_envs else {}
        parsed = parse_options({**sizes, **self._options})
        if parsed.config.autoreset_mode is AutoresetMode.DISABLED:
            raise ConfigError("tune() steps through ends of episodes; autoreset_mode expected another than 'disabled'")
        needs_processes = parsed.config.step_timeout is not None or parsed.config.start_method != "forkserver"
        is_native = entry is not None and not parsed.wrappers and takes_params(entry, parsed.params)
        backends = backends_for(given, is_native=is_native, needs_processes=needs_processes)
        if "native" in backends:
            self._look_at_native(parsed)
            if given is None:
                self.notes.append("it runs in C++; backends=['serial', 'processes'] measures its twin in Python")
        python = [name for name in backends if name in PYTHON_BACKENDS]
        if python:
            backends = self._look_at_python(python, parsed, backends)
        return backends

    def _look_at_native(self, parsed: Options) -> None:
        # One env would show what a call takes, not what the env does.
        num_envs = parsed.config.num_envs if "num_envs" in parsed.given else DEFAULT_NATIVE_ENVS
        given = {"seed": 0, **self._options, "num_envs": num_envs, "num_threads": 1, "backend": "native"}
        with make_pool(self._env, **given) as pool:
            probe = probe_native(Driver(pool, seed=0))
        self.probes["native"] = probe
        self._note(probe)

    def _look_at_python(self, python: list[str], parsed: Options, backends: tuple[str, ...]) -> tuple[str, ...]:
        """The backends that remain."""
        check_known(self._env)
        config = parsed.config
        recipe = recipe_for(
            self._env, config.num_envs, parsed.params, parsed.wrappers, config.render_mode, config.max_episode_steps
        )
        self._budget.show("a first look")
        probe = probe_python(recipe, config, in_worker="processes" in python, limit_s=self._budget.left_s * 0.75)
        self.probes.update(dict.fromkeys(python, probe))
        if probe.kills_its_process:
            self.notes.append("it ended its process at once: serial and threads were left out, they would end this one")
            return tuple(name for name in backends if name not in ("serial", "threads"))
        self._note(probe)
        return backends

    def _note(self, probe: Probe) -> None:
        figure = f"a step takes {duration(probe.step_s)} in one env"
        cores = counted(self._cores, "usable core")
        if probe.waits:
            self.notes.append(
                f"{figure}, {1 - probe.cpu_share:.0%} of it waiting: more workers than the {cores} can pay"
            )
        else:
            self.notes.append(f"{figure}; {cores}")


def own_num_envs(env: Env, options: dict[str, Any]) -> int | None:
    """How many envs the arguments of tune() themselves stand for."""
    lists = (env, options.get("env_kwargs"))
    return next((len(own) for own in lists if isinstance(own, (list, tuple)) and own), None)
