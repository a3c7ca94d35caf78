"""env-wrappers' samplers over envfleet.sampling.Runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from envfleet.sampling import Runner


class NamedRequest(dict[str, Any]):
    """The named arguments of trajs(), as a dict.

    With one argument it is that number too, where one is needed: env-wrappers' own example hands what its yield gives
    back to range().
    """

    def __index__(self) -> int:
        if len(self) != 1:
            raise TypeError(f"expected one named argument of trajs() to stand for a number, got {dict(self)!r}")
        (value,) = self.values()
        return int(value.__index__())


class _CompatRunner(Runner, ABC):
    """The signature of both, and their requests."""

    def __init__(
        self,
        gen_fns: Iterable[Callable[..., Any]],
        *args: Any,
        context: str | None = None,
        context_fn: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(gen_fns, *args, context_fn=context_fn, **self._settings(context), **kwargs)

    @abstractmethod
    def _settings(self, context: str | None) -> dict[str, Any]:
        """What Runner is told."""

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = super()._request(args, kwargs)
        return NamedRequest(request) if isinstance(request, dict) else request


class SubprocRunner(_CompatRunner):
    """Each generator in a process of its own, whichever is ready first, one request ahead.

    context: "fork", "spawn" or "forkserver"; None takes envfleet's, which needs no `if __name__ == "__main__":`.
    context_fn(manager): gives keyword arguments for the generators. The other arguments are the generators'.
    """

    def _settings(self, context: str | None) -> dict[str, Any]:
        return {"backend": "processes", "start_method": context}


class DummyRunner(_CompatRunner):
    """The generators in this process, in turn. context says nothing here."""

    def _settings(self, context: str | None) -> dict[str, Any]:
        return {"backend": "serial", "ordered": True}
