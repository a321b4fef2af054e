"""Where the runs of a sweep are executed: here, in processes of this machine, or on a Ray cluster. Chapter 12.

A backend takes jobs and yields (place of the job, outcome) as they are done. Knows nothing of what is run.
"""

import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from mini_vllm.errors import ConfigError, MissingDependencyError
from mini_vllm.sim.metrics import Metrics

Outcome = tuple[dict[str, Any] | None, str | None]
Backend = Callable[[Callable[..., Any], Sequence["Job"], int], Iterator[tuple[int, Outcome]]]


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    point: dict[str, Any]
    seed: int

    @property
    def key(self) -> str:
        """The same for the same run in every process and on every day."""
        return json.dumps({**self.point, "seed": self.seed}, sort_keys=True, default=repr)


def attempt(run: Callable[..., Any], job: Job) -> Outcome:
    """Plain metrics, or in one line the error that the run ended with."""
    try:
        measured = run(**job.point, seed=job.seed)
        plain = measured.to_dict() if isinstance(measured, Metrics) else measured
        if not isinstance(plain, Mapping):
            raise TypeError(f"{plain!r} was returned; a run returns Metrics, or name -> number")
        # Through JSON and back, so that a resumed sweep has the same values to the bit, and never an object by chance.
        return json.loads(json.dumps(dict(plain), default=float)), None
    except (Exception, SystemExit) as error:
        return None, f"{type(error).__name__}: {error}"


def _one_by_one(run: Callable[..., Any], jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, Outcome]]:
    for place, job in enumerate(jobs):
        yield place, attempt(run, job)


def _in_processes(run: Callable[..., Any], jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, Outcome]]:
    if workers == 1 or len(jobs) <= 1:
        yield from _one_by_one(run, jobs, workers)
        return
    _require_importable(run)
    left = dict(enumerate(jobs))
    try:
        for place, outcome in _pool(run, left, min(workers, len(jobs))):
            del left[place]
            yield place, outcome
    except BrokenProcessPool:
        # Somebody killed a worker, the system for memory perhaps. Each of the rest alone: so the culprit is found.
        for place, job in list(left.items()):
            try:
                yield from _pool(run, {place: job}, 1)
            except BrokenProcessPool:
                yield place, (None, "the process that ran this point died: killed, or out of memory")


def _pool(run: Callable[..., Any], jobs: dict[int, Job], workers: int) -> Iterator[tuple[int, Outcome]]:
    # Fresh interpreters: a fork of a process with threads, such as a notebook's kernel, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            pool.submit(os.getpid).result()
        except BrokenProcessPool as error:
            raise ConfigError(
                "the processes of the sweep end as soon as they start. They import the script that calls sweep(): put "
                'that call under `if __name__ == "__main__":`, or run the sweep with workers=1'
            ) from error
        places = {pool.submit(attempt, run, job): place for place, job in jobs.items()}
        try:
            pending = set(places)
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield places[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _require_importable(run: Callable[..., Any]) -> None:
    """Raise ConfigError unless another process can find `run` by its name."""
    reason = None
    try:
        pickle.dumps(run)
    except Exception as error:
        reason = str(error)
    at_home = sys.modules["__main__"]
    if run.__module__ == "__main__" and not hasattr(at_home, "__file__"):
        reason = "it was defined in a notebook or typed in"
    if reason:
        raise ConfigError(
            f"other processes cannot find {getattr(run, '__qualname__', run)!r}: {reason}. Put it into a module, or "
            "run the sweep with workers=1"
        )


def _on_ray(run: Callable[..., Any], jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, Outcome]]:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "backend='ray' needs the package 'ray'; in the repository: pip install -e '.[scale]'"
        ) from error
    is_guest = ray.is_initialized()
    if not is_guest:
        # Of its own, it listens to nobody but this machine and keeps no room for objects that we do not have.
        try:
            ray.init(
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=100 * 2**20,
                _node_ip_address="127.0.0.1",
            )
        except Exception as error:
            raise ConfigError(f"ray does not start on this machine ({error}); take backend='local'") from error
    try:
        remote = ray.remote(attempt).options(max_retries=2)
        places = {remote.remote(run, job): place for place, job in enumerate(jobs)}
        pending = list(places)
        while pending:
            done, pending = ray.wait(pending)
            for reference in done:
                try:
                    yield places[reference], ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield places[reference], (None, f"{type(error).__name__}: {error}")
    finally:
        if not is_guest:
            ray.shutdown()


BACKENDS: dict[str, Backend] = {"local": _in_processes, "ray": _on_ray}


def get_backend(name: str) -> Backend:
    """A backend by name. Raises ConfigError that lists the names."""
    if name not in BACKENDS:
        raise ConfigError(f"backend={name!r} is not one of {', '.join(BACKENDS)}")
    return BACKENDS[name]
