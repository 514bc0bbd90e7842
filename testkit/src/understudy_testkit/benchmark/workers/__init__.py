"""The training script of each arm. They differ only in what their approach asks for."""
