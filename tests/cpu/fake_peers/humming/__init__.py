"""A stand-in for humming-kernels, over the stand-in for PyTorch beside it. FAKE_HUMMING: "old" has no layer."""

__version__ = "0.1.20+fake"
