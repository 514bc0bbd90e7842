from tests.end_to_end.conftest import mark, reference

__all__ = ["mark", "reference"]
