from hypothesis import settings

# These tests also run under sanitizers, where nothing is fast.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
