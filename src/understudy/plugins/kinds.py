"""The kinds of plugins that packages can bring, each with its contract, the version of that, and our own plugins.

Modules are named and not imported: a process loads only the plugins that it uses. The entry point of a plugin names a
class (or function) that is called without arguments and has `contract_version`; so do the entries of this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`contract`: the Protocol class that a plugin must keep, as module:name. `version`: of the contract; it grows when
    a plugin that was written for the former one would not work any more. `built_in`: our own plugins, by name."""

    name: str
    contract: str
    version: int
    built_in: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """Of the entry points."""
        return f"understudy.{self.name}s"


DETECTOR = Kind(
    name="detector",
    contract="understudy.detection.contract:Detector",
    version=1,
    built_in={
        "straggler": "understudy.detection.straggler:StragglerDetector",
        "device": "understudy.detection.device_health:DeviceHealth",
    },
)
RESPONSE = Kind(
    name="response",
    contract="understudy.agent.responses:Response",
    version=1,
    built_in={"note": "understudy.agent.responses:Note", "move": "understudy.agent.responses:Move"},
)
STORE = Kind(
    name="store",
    contract="understudy.coordinator.stores:StoreProvider",
    version=1,
    built_in={
        "memory": "understudy.coordinator.stores:MemoryStores",
        "etcd": "understudy.coordinator.stores:EtcdStores",
        "folder": "understudy.coordinator.folder:FolderStores",
    },
)
COMMUNICATOR = Kind(
    name="communicator",
    contract="understudy.groups.families.contract:CommunicatorFamily",
    version=2,
    built_in={"gloo": "understudy.groups.families.gloo:Gloo", "nccl": "understudy.groups.families.nccl:Nccl"},
)
DEVICE = Kind(
    name="device",
    contract="understudy.devices.contract:Device",
    version=2,
    built_in={"cpu": "understudy.devices.cpu:Cpu", "cuda": "understudy.devices.cuda:Cuda"},
)
SCHEDULER = Kind(
    name="scheduler",
    contract="understudy.plugins.scheduler:Scheduler",
    version=0,  # a draft: no command asks a scheduler yet, and the contract may change without notice until one does
)
WEBHOOK = Kind(
    name="webhook",
    contract="understudy.api.webhook_formats:WebhookFormat",
    version=1,
    built_in={
        "alertmanager": "understudy.api.webhook_formats:Alertmanager",
        "generic": "understudy.api.webhook_formats:Generic",
    },
)
KINDS = (DETECTOR, RESPONSE, STORE, COMMUNICATOR, DEVICE, SCHEDULER, WEBHOOK)
