"""Says what to change in the script where torch's own words do not."""

import traceback

_OWN_GROUP = (
    "understudy.join() makes the default process group: remove your own call of "
    "torch.distributed.init_process_group, and call join() first"
)


def add_hint(error: BaseException) -> bool:
    """To the end of its traceback, once. Is there one? Then any other process would meet the same error."""
    if not any(frame.name == "init_process_group" for frame in traceback.extract_tb(error.__traceback__)):
        return False
    if _OWN_GROUP not in getattr(error, "__notes__", ()):
        error.add_note(_OWN_GROUP)
    return True
