"""Finds plugins and loads them. Our own come from the table of kinds, those of other packages from their entry points,
and a script may bring one of its own (`register`).

A plugin that cannot be used harms nothing: `usable` names it once and leaves it out. Only a plugin that the user has
asked for by name is an error (`named`). To look for entry points reads the metadata of every installed package, so a
command does it once, at its start; a plugin of our own that is asked for by name is loaded without.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from understudy.errors import PluginError, SettingsError
from understudy.foundation.printable import printable
from understudy.plugins.kinds import Kind

OURS = "understudy"
_SCRIPT = "this script"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # goes into flags, addresses and paths of HTTP


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One plugin that was found; nothing of it is loaded yet. `package` and `version`: of the distribution that brings
    it. `objection`: why it is not even loaded."""

    kind: Kind
    entry: EntryPoint
    package: str
    version: str
    objection: str = ""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def built_in(self) -> bool:
        return self.package == OURS

    def __str__(self) -> str:
        return printable(f"the {self.kind.name} {self.name!r} of {self.package} {self.version}".rstrip())

    def load(self) -> Callable[[], Any]:
        """What makes the plugin. Raises `PluginError`: one sentence that says whose fault it is and what to do."""
        if self.objection:
            raise PluginError(f"{self} is left out: {self.objection}")
        try:
            make: Callable[[], Any] = self.entry.load()
        except (Exception, SystemExit) as error:
            raise self._broken("cannot be loaded", error) from error
        self._require_version(getattr(make, "contract_version", None))
        if not callable(make):
            raise PluginError(f"{self} is left out: its entry point names a {type(make).__name__}, not a class")
        return make

    def make(self) -> Any:
        """A new one, which keeps the contract as far as names tell. Raises `PluginError`, as `load` does."""
        make, contract = self.load(), EntryPoint(self.name, self.kind.contract, self.kind.group).load()
        try:
            made = make()
            fits = isinstance(made, contract)
        except (Exception, SystemExit) as error:
            raise self._broken("cannot be made", error) from error
        if not fits:
            raise PluginError(f"{self} is left out: it is no {contract.__name__}, see {contract.__module__}")
        return made

    def _broken(self, what: str, error: BaseException) -> PluginError:
        text = f"{self} {what} and is left out: {type(error).__name__}: {error}"
        return PluginError(printable(text, instead=" "))

    def _require_version(self, theirs: object) -> None:
        ours = self.kind.version
        if theirs == ours:
            return
        if not isinstance(theirs, int):
            raise PluginError(
                f"{self} is left out: it does not say for which version of the contract it was written; if it is for "
                f"this one, its class needs `contract_version = {ours}`"
            )
        newer, older = (OURS, self.package) if theirs > ours else (self.package, OURS)
        raise PluginError(
            f"{self} is left out: it was written for version {theirs} of the contract of {self.kind.name}s, and "
            f"understudy {_version(OURS)} has version {ours}: install a newer {newer}, or an older {older}"
        )


_registered: list[Plugin] = []


def register(kind: Kind, name: str, value: str) -> None:
    """A plugin of this process alone, for scripts and tests: `value` names it, as module:name. What joins by that name
    calls this before `join()`, replacements too."""
    entry = EntryPoint(name, value, kind.group)
    _registered[:] = [plugin for plugin in _registered if (plugin.kind, plugin.name) != (kind, name)]
    _registered.append(Plugin(kind=kind, entry=entry, package=_SCRIPT, version=""))


def find(kind: Kind) -> tuple[Plugin, ...]:
    """Ours first. Plugins that have one name are all left out, except ours."""
    installed = [*_installed(kind), *(plugin for plugin in _registered if plugin.kind == kind)]
    count = Counter(plugin.name for plugin in installed)
    return (*_built_in(kind), *(_with_objection(plugin, count[plugin.name]) for plugin in installed))


def ours(kind: Kind) -> dict[str, Any]:
    """Our own plugins of a kind, made, by name. No other package is looked at."""
    return {plugin.name: plugin.make() for plugin in _built_in(kind)}


def usable(kind: Kind, say: Callable[[str], None]) -> dict[str, Any]:
    """Every plugin of a kind, made, by name. `say` is told of each one that is left out."""
    made = {}
    for plugin in find(kind):
        try:
            made[plugin.name] = plugin.make()
        except PluginError as error:
            say(str(error))
    return made


def named(kind: Kind, name: str, flag: str) -> Any:
    """The plugin that the user has asked for. `SettingsError` names `flag`, as the user wrote it."""
    known = _built_in(kind) if name in kind.built_in else find(kind)
    plugin = next((plugin for plugin in known if plugin.name == name), None)
    if plugin is None:
        names = ", ".join(sorted({plugin.name for plugin in known})) or "none"
        raise SettingsError(f"{flag}: no installed package has a {kind.name} of that name; there is {names}")
    try:
        return plugin.make()
    except PluginError as error:
        raise SettingsError(f"{flag}: {error}") from error


def _built_in(kind: Kind) -> tuple[Plugin, ...]:
    return tuple(
        Plugin(kind=kind, entry=EntryPoint(name, value, kind.group), package=OURS, version=_version(OURS))
        for name, value in kind.built_in.items()
    )


def _installed(kind: Kind) -> list[Plugin]:
    try:
        plugins = [
            Plugin(kind=kind, entry=entry, package=str(dist.name), version=str(dist.version))
            for entry in entry_points(group=kind.group)
            if (dist := entry.dist) is not None
        ]
    except Exception as error:  # one package with damaged metadata hides the entry points of all
        why = f"the metadata of the installed packages cannot be read ({error}); `pip check` may say of which"
        unknown = EntryPoint("?", "?", kind.group)
        return [Plugin(kind=kind, entry=unknown, package="unknown", version="", objection=why)]
    return sorted(plugins, key=lambda plugin: (plugin.name, plugin.package))


def _with_objection(plugin: Plugin, of_that_name: int) -> Plugin:
    if plugin.objection:
        return plugin
    why = ""
    if not _NAME.fullmatch(plugin.name):
        why = "a name has small letters, digits, dashes and underscores, 64 at most; the package must change it"
    elif plugin.name in plugin.kind.built_in:
        why = f"understudy has a {plugin.kind.name} of that name itself; the package must choose another one"
    elif of_that_name > 1:
        why = f"{of_that_name} packages bring a {plugin.kind.name} of that name; uninstall all but one"
    return replace(plugin, objection=why)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # it runs from its source folder
        return "(not installed)"
