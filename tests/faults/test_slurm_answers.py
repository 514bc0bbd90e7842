"""What Slurm's commands printed here (22.05.8), as values."""

from understudy_testkit.faults.slurm.answers import JobSeen, NodeSeen, fields_in, jobs_in, nodes_in


def test_jobs() -> None:
    printed = "7|PENDING||Resources\n5_0|RUNNING|n[1-2,4]|None\n"
    assert jobs_in(printed) == {
        "7": JobSeen("7", "PENDING", "", "Resources"),
        "5_0": JobSeen("5_0", "RUNNING", "n[1-2,4]", "None"),
    }
    assert jobs_in("") == {}


def test_nodes() -> None:
    """With one line for each partition. A state has a mark when the node does not answer."""
    printed = "n1|idle|none\nn1|idle|none\nn2|down*|Not responding\nn3|draining|fan 3 | slow\nn4|allocated*|none\n"
    assert nodes_in(printed) == {
        "n1": NodeSeen("n1", "idle", True, ""),
        "n2": NodeSeen("n2", "down", False, "Not responding"),
        "n3": NodeSeen("n3", "draining", True, "fan 3 | slow"),
        "n4": NodeSeen("n4", "allocated", False, ""),
    }


def test_fields_of_a_job() -> None:
    printed = (
        "JobId=1 JobName=train.sbatch UserId=root(0) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
        "JobState=RUNNING Reason=None Dependency=(null) NodeList=n[1-3] BatchHost=n1 "
        "AllocNode:Sid=vm:5004 Command=/tmp/train.sbatch train.py StdErr=/tmp/slurm-1.out Power="
    )
    fields = fields_in(printed)
    assert fields["JobState"] == "RUNNING" and fields["NodeList"] == "n[1-3]" and fields["Restarts"] == "0"
    assert fields["AllocNode:Sid"] == "vm:5004" and fields["Power"] == ""
