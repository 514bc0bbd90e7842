"""What a host says of itself: the names by which monitors know it, and its devices. Bounded, for any host may fill it.

There is no name of another host in it: the host that greets with it is the one that it describes. A field that is not
known here is ignored, as in every message: a newer version may say more (`versions`).
"""

from typing import Annotated

import msgspec

MOST_DEVICES = 64
MOST_ADDRESSES = 64
LONGEST = 200  # characters of one text

Text = Annotated[str, msgspec.Meta(max_length=LONGEST)]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """`slot`: its number among those that processes of its host see. The local rank that has it at the beginning."""

    slot: Annotated[int, msgspec.Meta(ge=0, lt=1024)]
    uuid: Text = ""
    pci_bus_id: Text = ""


class HostInventory(msgspec.Struct, frozen=True, kw_only=True):
    """What is empty is not known, or not there."""

    host_name: Text = ""
    addresses: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MOST_ADDRESSES)] = ()
    pod: Text = ""
    devices: Annotated[tuple[Device, ...], msgspec.Meta(max_length=MOST_DEVICES)] = ()

    @property
    def numbered_devices(self) -> int:
        """How many there are, if each local rank from 0 on has one of its own; otherwise 0, for then it is not known
        which numbers mean which."""
        slots = [device.slot for device in self.devices]
        return len(slots) if sorted(slots) == list(range(len(slots))) else 0
