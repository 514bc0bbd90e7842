"""The text of a slurm.conf for a cluster of test hosts. Knows no process; `cluster` writes it into a temporary folder.

Everything runs as root, in the foreground, and below one folder. Control groups are left out: a test machine may have
none, and the end of a test kills a whole network namespace. Seconds that are minutes at a real site are short here, so
that a test can wait for what they lead to.
"""

from collections.abc import Mapping
from pathlib import Path

SLURMD_TIMEOUT = 10  # seconds until a node that does not answer is down; 300 by default
GRACE_TIME = 20  # seconds between SIGTERM and the end of a job that is preempted
CPUS = 8  # of each node, whatever the machine has
GPUS = 8  # of each node; Slurm counts them, and nothing more

CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"  # slurmd loads one in any case; this one looks for nothing until it is used
GPU_FILES = tuple(f"gpu{number}" for number in range(GPUS))  # empty ones: slurmd counts those that are there

_CONTROLLER_PORT, _NODE_PORT = 6817, 6818  # of addresses of the cluster's own
_TEXT = """\
ClusterName=understudy-test
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
SlurmdTimeout={slurmd_timeout}
SlurmctldTimeout=60
MessageTimeout=10
KillWait=5
InactiveLimit=0
MinJobAge=600
CompleteWait=0
ReturnToService=2
JobRequeue=1
TreeWidth=64
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUS={cpus} RealMemory=1024 Gres=gpu:{gpus} State=UNKNOWN
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_time} MaxTime=INFINITE State=UP
"""


def gres_conf(folder: Path) -> str:
    return f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n"


def slurm_conf(folder: Path, munge: Path, controller: tuple[str, str], nodes: Mapping[str, str]) -> str:
    """`controller`: host name (slurmctld compares it) and address. `nodes`: addresses by name."""
    host, address = controller
    return _TEXT.format(
        host=host,
        address=address,
        controller_port=_CONTROLLER_PORT,
        node_port=_NODE_PORT,
        munge=munge,
        folder=folder,
        slurmd_timeout=SLURMD_TIMEOUT,
        grace_time=GRACE_TIME,
        cpus=CPUS,
        gpus=GPUS,
        nodes="\n".join(f"NodeName={name} NodeAddr={at}" for name, at in nodes.items()),
    )
