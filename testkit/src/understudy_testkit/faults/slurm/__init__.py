"""A real Slurm for tests: `configuration` writes its files, `answers` reads its commands, `cluster` starts it."""
