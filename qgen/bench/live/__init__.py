"""Other people's kernels, timed in the same run on the same matrices: what `--peer` asks for.

Each peer lives in a process of its own (`child`), so that what it does to CUDA, or to itself, cannot harm the run;
`peer` is its end here.
"""
