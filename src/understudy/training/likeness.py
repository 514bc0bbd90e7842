"""Is a replacement's script the one that its predecessor ran? What setup has made is compared before it joins.

A script that resumes from the newest checkpoint of its own makes a replacement that begins elsewhere than the others
did: with fewer steps to go, or with another model. It would wait for a step that nobody else runs.
"""

import msgspec

from understudy.state.manifest import Protected

_RESUMES = (
    "If the script reads its own newest checkpoint when it starts, let every rank and every replacement read the same "
    "one (for example one that is named on the command line), and count steps from the beginning of the run"
)
_BUILDS = "Let the script build and protect the same things whenever it starts"


class Likeness(msgspec.Struct, frozen=True, kw_only=True):
    """`total`: of steps. `things`: what is protected, by name. `parameters`: type and local shape of each."""

    total: int = 0
    things: dict[str, str] = {}
    parameters: dict[str, str] = {}


def likeness_of(protected: Protected, total: int) -> Likeness:
    parameters = {path: f"{tensor.dtype} {tuple(tensor.shape)}" for path, tensor in protected.own_parameters()}
    things = dict.fromkeys(protected.modules, "a module")
    things |= {
        name: f"an optimizer with {len(optimizer.param_groups)} parameter groups"
        for name, optimizer in protected.optimizers.items()
    }
    things |= dict.fromkeys(protected.objects, "an object with state")
    if protected.save is not None:
        things["save"] = "functions of the script"
    return Likeness(total=total, things=things, parameters=parameters)


def difference(predecessor: Likeness, own: Likeness) -> str | None:
    """A sentence about the first difference, and what to do about it."""
    if predecessor.total != own.total:
        return f"its total of steps is {own.total}, but the job's is {predecessor.total}. {_RESUMES}"
    for before, now in ((predecessor.things, own.things), (predecessor.parameters, own.parameters)):
        for name in (*before, *now):
            if before.get(name) != now.get(name):
                was, found = before.get(name, "not there"), now.get(name, "not there")
                return f"{name} is {found}, but {was} in the rank that it replaces. {_BUILDS}"
    return None
