"""What an operating system's scheduler would do with our requests: policies, a CPU, and a batch machine. Chapter 3."""

from mini_vllm.os_sched.batch_machine import BatchMachine
from mini_vllm.os_sched.cfs import CFS
from mini_vllm.os_sched.cpu import CPU
from mini_vllm.os_sched.eevdf import EEVDF
from mini_vllm.os_sched.fcfs import FCFS
from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.lottery import Lottery
from mini_vllm.os_sched.mlfq import MLFQ
from mini_vllm.os_sched.policy import Policy
from mini_vllm.os_sched.round_robin import RoundRobin
from mini_vllm.os_sched.sjf import SJF
from mini_vllm.os_sched.srtf import SRTF
from mini_vllm.os_sched.stride import Stride
from mini_vllm.os_sched.vtc import VTC

ALL_POLICIES = (FCFS, SJF, SRTF, RoundRobin, MLFQ, Lottery, Stride, CFS, EEVDF, VTC)

__all__ = [
    "ALL_POLICIES",
    "CFS",
    "CPU",
    "EEVDF",
    "FCFS",
    "MLFQ",
    "SJF",
    "SRTF",
    "VTC",
    "BatchMachine",
    "Job",
    "Lottery",
    "Policy",
    "RoundRobin",
    "Stride",
]
