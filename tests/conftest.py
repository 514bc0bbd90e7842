"""For all tests."""

import hypothesis

# A busy machine may pause any example for a second; tests that measure time do so by themselves.
hypothesis.settings.register_profile("understudy", deadline=None)
hypothesis.settings.load_profile("understudy")
