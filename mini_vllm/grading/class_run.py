"""Grades many notebooks: here in threads, or on a Ray cluster. Knows their order; judges nothing. All chapters."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from mini_vllm import __version__
from mini_vllm.errors import GradingError
from mini_vllm.grading import runner
from mini_vllm.grading.grader import Grader
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.pristine import load_all
from mini_vllm.grading.report import NotebookReport
from mini_vllm.grading.submissions import Submission, collect
from mini_vllm.sandbox.protection import Protection

BACKENDS = ("local", "ray")
OnDone = Callable[[NotebookReport], None]


def grade_paths(
    paths: Iterable[Path],
    *,
    seed: int | None = None,
    limits: Limits | None = None,
    pristine: Path | None = None,
    workers: int | None = None,
    backend: str = "local",
    shield: Protection | None = None,
    on_done: OnDone = lambda report: None,
) -> list[NotebookReport]:
    """Grade notebooks, and all notebooks of folders, in the order given, whatever the backend and the workers.

    seed: of the hidden cases; drawn at random by default and kept in each report, so that a run can be repeated.
    pristine: a folder of untouched notebooks instead of those in the package.
    workers: notebooks graded at the same time; by default one for each CPU.
    """
    return grade_submissions(
        collect(paths),
        Grader(
            load_all(Path(pristine).resolve() if pristine else None),
            secrets.randbelow(2**31) if seed is None else seed,
            limits or Limits(),
            shield,
        ),
        workers=workers,
        backend=backend,
        on_done=on_done,
    )


def grade_submissions(
    submissions: list[Submission],
    grader: Grader,
    *,
    workers: int | None = None,
    backend: str = "local",
    on_done: OnDone = lambda report: None,
) -> list[NotebookReport]:
    """Reports in the order of the submissions. Ctrl-C ends the runs; what was graded by then is returned."""
    run = {"local": _in_threads, "ray": _on_ray}[backend]
    runner.interrupted.clear()
    reports: dict[int, NotebookReport] = {}
    try:
        for place, report in run(submissions, grader, workers):
            reports[place] = report
            on_done(report)
    except KeyboardInterrupt:
        runner.interrupted.set()
    for place, submission in enumerate(submissions):
        if place not in reports:
            text = f"{submission.path}: not graded, the run was interrupted"
            reports[place] = NotebookReport(submission.path, submission.student, grader.seed, error=text)
    return [reports[place] for place in range(len(submissions))]


def _in_threads(submissions, grader, workers) -> Iterator[tuple[int, NotebookReport]]:
    pool = ThreadPoolExecutor(max_workers=workers or usable_cpus())
    try:
        places = {pool.submit(grader.grade, submission): place for place, submission in enumerate(submissions)}
        for future in as_completed(places):
            yield places[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def usable_cpus() -> int:
    """CPUs that this process may use: a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on_ray(submissions, grader, workers) -> Iterator[tuple[int, NotebookReport]]:
    """One task a notebook. Files travel as bytes: the nodes need mini_vllm, not the class folder.

    RAY_ADDRESS names a cluster; without it Ray starts on this machine. A task whose node is lost is run again.
    """
    try:
        import ray
    except ImportError as error:
        raise GradingError(
            "--backend ray needs the package 'ray', which is not installed; in the repository: "
            "pip install -e '.[scale]'. Without it: --backend local"
        ) from error
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS"), num_cpus=workers, include_dashboard=False, log_to_driver=False)
    task = ray.remote(num_cpus=1, max_retries=2)(_grade_on_a_node)
    places = {task.remote(grader, s, __version__): place for place, s in enumerate(submissions)}
    waiting = list(places)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        for reference in done:
            yield places[reference], _result(ray, reference, submissions[places[reference]], grader)


def _result(ray, reference, submission: Submission, grader: Grader) -> NotebookReport:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        text = f"{submission.path}: its Ray task failed: {str(error).strip().splitlines()[-1]}"
        return NotebookReport(submission.path, submission.student, grader.seed, error=text)


def _grade_on_a_node(grader: Grader, submission: Submission, version: str) -> NotebookReport:
    if version != __version__:
        raise GradingError(f"this node has mini_vllm {__version__}, the grader {version}; install the same on both")
    return grader.grade(submission)
