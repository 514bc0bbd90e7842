"""Faults as data, and the injectors that make them happen inside real processes. The product never imports this."""
