"""What a user touches: join, protect, steps. Runs inside the user's script, in the worker process."""
