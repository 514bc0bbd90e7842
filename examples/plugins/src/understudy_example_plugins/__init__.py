"""Two plugins for Understudy: a detector (`long_step`) and a webhook format (`node_problem`)."""
