"""Everything that is chosen by name is found in one way: methods, data, models, codecs, metrics, plans.

A name means, in this order,

1. one of the package's own, whether written as "per-fedavg", "per_fedavg" or "PerFedAvg";
2. what an installed package declares as an entry point in the kind's group, such as `idiolect.methods`;
3. an import path, `package.module:Attribute`; modules beside the user, in the current folder, are found too.

What is found is checked to be of its kind. What is wrong is told in one sentence.
"""

import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, ValidationError

from idiolect.errors import UserError, did_you_mean

T = TypeVar("T")

log = logging.getLogger(__name__)

_IMPORT_PATH = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


def _shortest(value: Any) -> Any:
    """A name and its options; without options the name alone."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError("it must be a name, or {name: NAME, option: value}")  # noqa: TRY004  (for pydantic)
    return value["name"] if len(value) == 1 else dict(value)


# How a setting names something that has options of its own: "topk", or {"name": "topk", "keep": 0.1}.
Named = Annotated[str | dict[str, Any], BeforeValidator(_shortest)]


@dataclass(frozen=True)
class Catalogue(Generic[T]):
    """All of one kind by name.

    flaw: what keeps something that was imported from being of this kind, as in "it must be a function".
    """

    word: str  # the setting that chooses one, and how one is called
    several: str  # how many are called
    group: str  # of entry points
    own: str  # what else a name may be, besides those that are listed
    flaw: Callable[[Any], str | None]
    built_in: Mapping[str, T] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # further names of the built-in ones

    def find(self, name: str, setting: str = "") -> T:
        """What a name means; `setting` says where it was written, for the message."""
        where = f"{setting or self.word}={name!r}"
        if (built_in := self._built_in(name)) is not None:
            return self.built_in[built_in]
        path = self.path(name)
        if path is None:
            raise self.unknown(name, setting)
        found = _import(path, where)
        if flaw := self.flaw(found):
            raise UserError(f"{where} cannot be used: {flaw}")
        imported: T = found
        return imported

    def knows(self, name: str) -> bool:
        """Whether a name means something, as far as that can be told without importing it."""
        return self._built_in(name) is not None or self.path(name) is not None

    def is_own(self, name: str) -> bool:
        """Whether a name means code that is not part of this package."""
        return self._built_in(name) is None

    def spelled(self, name: str) -> str:
        """The name as it is kept: that of a built-in one or of an entry point, or the import path."""
        if (built_in := self._built_in(name)) is not None:
            return built_in
        entry = None if ":" in name else self._entry_point(name)
        return name if entry is None else entry.name

    def path(self, name: str) -> str | None:
        """The import path of what is not built in; None if there is nothing of that name."""
        if ":" in name:
            return name if _IMPORT_PATH.fullmatch(name) else None
        entry = self._entry_point(name)
        return None if entry is None else f"{entry.module}:{entry.attr or ''}"

    def entries(self) -> dict[str, T]:
        """All by name, those of installed packages too; one of these that cannot be used is only logged."""
        found = dict(self.built_in)
        for name in self._installed_names():
            try:
                found[name] = self.find(name)
            except UserError as error:
                log.warning("%s", error)
        return found

    def unknown(self, name: str, setting: str = "") -> UserError:
        """That nothing has this name, with the nearest names and all that there are."""
        names = [*self.built_in, *self._installed_names()]
        near = did_you_mean(name.lower(), [*names, *self.aliases])
        known = f"the {self.several} are {', '.join(names)}, or" if names else f"a {self.word} is"
        return UserError(f"{setting or self.word}={name!r} is not known{near}; {known} {self.own}")

    def _built_in(self, name: str) -> str | None:
        spellings = {_plain(known): known for known in self.built_in}
        further = {_plain(alias): known for alias, known in self.aliases.items()}
        return (further | spellings).get(_plain(name))

    def _installed_names(self) -> list[str]:
        names = {entry.name for entry in _installed(self.group)}
        return sorted(name for name in names if self.is_own(name))

    def _entry_point(self, name: str) -> EntryPoint | None:
        found = {e.value: e for e in _installed(self.group) if _plain(e.name) == _plain(name)}
        if len(found) > 1:
            raise UserError(
                f"{self.word}={name!r} is declared by more than one installed package; "
                f"say which one is meant: {' or '.join(sorted(found))}"
            )
        return next(iter(found.values()), None)


def _installed(group: str) -> tuple[EntryPoint, ...]:
    """What installed packages declare."""
    return _installed_on(tuple(sys.path), group)


@lru_cache(maxsize=64)
def _installed_on(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    """The same of the packages on a path: their files are read once."""
    return tuple(entry_points(group=group))


def chosen(choice: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options that a `Named` setting holds.

    >>> chosen("topk"), chosen({"name": "topk", "keep": 0.1})
    (('topk', {}), ('topk', {'keep': 0.1}))
    """
    options = {"name": choice} if isinstance(choice, str) else dict(choice)
    return options.pop("name"), options


def option_names(factory: Callable[..., Any], *, given: Iterable[str] = (), sources: int = 0) -> list[str]:
    """The options that a function or class takes by name.

    Neither the first `sources` parameters are options, nor those that are `given` from elsewhere, nor those
    that a `functools.partial` has settled.
    """
    return [parameter.name for parameter in _options(factory, given, sources)]


def check_options(
    factory: Callable[..., Any],
    options: Iterable[str],
    where: str,
    *,
    given: Iterable[str] = (),
    sources: int = 0,
) -> None:
    """Refuse an option that a function or class does not take; `where` is as in "model 'mlp'"."""
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values()):
        return
    known = option_names(factory, given=given, sources=sources)
    has = f"the options are {', '.join(known)}" if known else "it has no options"
    for option in options:
        if option not in known:
            raise UserError(f"{where} has no option {option!r}{did_you_mean(option, known)}; {has}")


def call(
    factory: Callable[..., T],
    options: Mapping[str, Any],
    where: str,
    *,
    sources: Sequence[Any] = (),
    **provided: Any,
) -> T:
    """What a function or class makes of a user's options, which are checked against its signature.

    `sources` come first; of what is `provided` it gets what it has a parameter for.
    """
    check_options(factory, options, where, given=provided, sources=len(sources))
    for parameter in _options(factory, provided, len(sources)):
        if parameter.default is parameter.empty and parameter.name not in options:
            raise UserError(f"{where} needs the option {parameter.name!r}")
    taken = {name: provided[name] for name in inspect.signature(factory).parameters if name in provided}
    try:
        return factory(*sources, **taken, **options)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].replace("Input should", "it should")
        if first["type"] == "missing" and len(first["loc"]) > 1:  # of a list
            option, problem = str(first["loc"][0]), "it has too few entries"
        raise UserError(f"{where}: {option}={first.get('input')!r} is not right: {problem}") from error


def kind_of(found: object) -> str:
    """What something is, for a sentence that says what it should have been."""
    if inspect.isclass(found):
        return f"the class {found.__name__}"
    return "a function" if inspect.isroutine(found) else f"a value of type {type(found).__name__}"


def _options(factory: Callable[..., Any], given: Iterable[str], sources: int) -> list[inspect.Parameter]:
    settled = {*given, *(factory.keywords if isinstance(factory, partial) else ())}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = list(inspect.signature(factory).parameters.values())[sources:]
    return [p for p in parameters if p.kind in by_name and p.name not in settled]


def _import(path: str, where: str) -> Any:
    """What an import path names; the reason, in one sentence, if that cannot be had."""
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise UserError(f"{where} is declared as the module {module_name}; it must be package.module:Name")
    _find_beside(module_name.partition(".")[0])
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module does when it is imported
        raise UserError(f"{where} cannot be imported: {_reason(error, module_name)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, dir(found))
            raise UserError(f"{where} cannot be imported: the module {module_name} has no {attribute}{near}")
        found = getattr(found, part)
    return found


def _reason(error: Exception, module_name: str) -> str:
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is not None and f"{module_name}.".startswith(f"{absent}."):
        return f"there is no module {absent}"
    text = " ".join(str(error).split())
    return f"the module {module_name} fails with {type(error).__name__}: {text}"


def _find_beside(package: str) -> None:
    """Let a module in the current folder be found, where nothing of its name is installed."""
    if package in sys.modules or find_spec(package) is not None:
        return
    here = Path.cwd()
    if (here / f"{package}.py").is_file() or (here / package).is_dir():
        sys.path.append(str(here))


@cache  # names are few, and looked up often
def _plain(name: str) -> str:
    """A name without what does not matter."""
    return re.sub(r"[-_ ]", "", name.lower())
