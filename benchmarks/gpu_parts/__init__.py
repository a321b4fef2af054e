"""The parts of benchmarks/gpu.py, one file a part; each knows what it measures, none knows the others. Chapter 13.

parts.py             their names, order and shares of the time
bench.py             what a part gets: device, sizes, timer, clock, report
report.py            rows and figures, written to JSON after every row, and the tables on the screen
timing.py            CUDA events and graphs, and a plain clock for a run without a GPU
supervise.py         each part in a process of its own, so that a crash or a hang ends that part alone
machine.py           card, driver, versions, clocks; what this card reaches in copies and in a matrix product
problems.py          random paged attention problems, and the launch of the kernel that serves them
models.py            real shapes with random weights
engine.py            an engine without files, and what each of its steps had to move
peers.py             other people's attention on the same numbers
"""
