"""One file per command. Prints what a tired person at 3 a.m. needs."""
