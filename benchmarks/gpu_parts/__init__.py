"""The parts of benchmarks/gpu.py, and what they share. A part knows what it measures; none knows another. Chapter 13.

Parts, in the order of parts.py: machine, correctness, parity, decode_bandwidth, prefill, offline, transformers, swap,
samples; and on demand sweep_compile, sweep. Beside them:

- bench.py: what a part gets: device, sizes, timer, clock, report
- report.py: rows and figures, on the screen as they come, and written to JSON after every row
- timing.py: CUDA events and graphs, and a plain clock for a run without a GPU
- supervise.py: each part in a process of its own, so that a crash or a hang ends that part alone
- problems.py, peers.py: random attention problems, our kernels on them, and other people's attention
- models.py, engine.py: real shapes with random weights, an engine around them, and what its steps had to move
"""
