"""How a member comes through a fault: its report, the plan, regroup, transfer, and the checks that follow."""
