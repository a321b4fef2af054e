"""The engine: a real model driven by the scheduler. Needs torch. Chapter 14."""

import os

# Read by OpenMP when torch is first imported. Its threads otherwise wait for each other by spinning, hundreds of times
# a step; where anything else wants the cores, that made a run of 48 steps take 135 s, not 9 (2 cores, torch 2.13).
# On a machine of one's own sleeping costs up to a third of a step: GOMP_SPINCOUNT=4000 wins over this line.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
