"""What must be so while the fork server imports what every worker imports. Imports nothing itself."""

VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Under which an import that asks whether there is a device does not touch it: a forked process could not use it any
more. Untested: there was no accelerator."""
