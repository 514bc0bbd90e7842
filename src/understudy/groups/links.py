"""How the groups of one member are connected: the script's groups by their family, what is ours by the same family or,
where that cannot carry it, by gloo beside it.

Knows families and their links, and nothing of groups and ranks.
"""

from collections.abc import Callable

from understudy.groups.families.contract import CommunicatorFamily, Links
from understudy.groups.families.gloo import Gloo


class GroupLinks:
    """`family`, `of_groups`: for the script's groups. `own_family`, `of_ours`: for bridges, pairs and words; the same
    where the family carries words. `all`: what is asked whether contact is lost, and what is broken then."""

    def __init__(
        self, family: CommunicatorFamily, exists: Callable[[str], bool], formed: Callable[[list[int]], None]
    ) -> None:
        self.family, self.of_groups = family, family.links(exists, formed)
        self.own_family, self.of_ours = self.family, self.of_groups
        self.all: Links | BothLinks = self.of_groups
        if not family.carries_words:
            self.own_family = gloo = Gloo()
            self.of_ours = gloo.links(exists, formed)
            self.all = BothLinks(self.of_groups, self.of_ours)

    @property
    def break_at_once(self) -> Callable[[], object] | None:
        """What frees a device; None where all links are broken when the threads of this process rest."""
        return None if self.family.breaks_in_rest else self.of_groups.break_all


class BothLinks:
    """Looked at and broken together."""

    def __init__(self, of_groups: Links, of_ours: Links) -> None:
        self._both = (of_groups, of_ours)

    def hear(self, value: bytes) -> None:
        for links in self._both:
            links.hear(value)

    def broken(self) -> bool:
        return any(links.broken() for links in self._both)

    def break_all(self) -> int:
        return sum(links.break_all() for links in self._both)

    def break_group(self, group: str) -> int:
        return sum(links.break_group(group) for links in self._both)

    def unsent(self) -> bool:
        return any(links.unsent() for links in self._both)
