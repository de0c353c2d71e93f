"""Measuring: kernels beside the floors of their own bytes, beside other people's, and under a profiler.

Nothing here decides what runs; it proposes numbers. A run is `session.bench`, its records are in `records`, its texts
in `report` and `plots`; `profile` counts one kernel with Nsight Compute.
"""
