"""env-wrappers' samplers over envfleet.sampling.Runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Any

from envfleet.sampling import Runner
from envfleet.sampling.generators import READY


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


class _ReadyFirst:
    """A generator function that yields "ready" first, around one that may not: older examples of env-wrappers do not.

    What such a generator yields first is its answer to the first request. A class, not a closure, so that plain pickle
    takes it too.
    """

    def __init__(self, gen_fn: Callable[..., Any]) -> None:
        self.gen_fn = gen_fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        generator = self.gen_fn(*args, **kwargs)
        # What is none, Runner refuses.
        return _ready_first(generator) if isinstance(generator, Generator) else generator


def _ready_first(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, None]:
    try:
        first = next(generator)
        request = yield READY
        if not (isinstance(first, str) and first == READY):
            request = yield first
        while True:
            request = yield generator.send(request)
    except StopIteration:
        return
    finally:
        generator.close()


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
        if isinstance(gen_fns, Iterable):  # what is none, Runner refuses
            gen_fns = [_ReadyFirst(own) if callable(own) else own for own in gen_fns]
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
