"""A trainer's log of entries as a state: without times, so that it is equal in all ranks, and in all runs."""

from typing import Any


class History:
    """The list of entries is the attribute `name` of `owner`. `times`: how the names of times end in an entry."""

    stays_in_steps = True  # no entry is made in a step

    def __init__(self, owner: Any, name: str, times: tuple[str, ...]) -> None:
        self._owner, self._name, self._times = owner, name, times

    def state_dict(self) -> dict[str, Any]:
        entries = getattr(self._owner, self._name)
        return {"entries": [{key: entry[key] for key in entry if not key.endswith(self._times)} for entry in entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Entries that are there already keep their times."""
        entries, known = state["entries"], self.state_dict()["entries"]
        same = len(entries) if known[: len(entries)] == entries else 0
        getattr(self._owner, self._name)[same:] = entries[same:]
