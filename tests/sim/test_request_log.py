"""The log of a run: compact, and equal only if every value is."""

import math

from mini_vllm.sim.request_log import TYPECODES, Live, RequestLog, RequestRow


def logged(**changes):
    log = RequestLog()
    log.add(0.5, 10)
    live = Live("0", log.add(1.0, 20), 20, measured=True)
    live.scheduled_s, live.first_token_s, live.last_token_s, live.known = 2.0, 3.0, 5.0, 23
    for name, value in changes.items():
        setattr(live, name, value)
    log.write(live, finished=True)
    return log


def test_a_row_has_what_was_written_and_nan_for_what_did_not_happen():
    waiting, done = logged()
    assert (waiting.arrived_s, waiting.prompt_tokens, waiting.output_tokens, waiting.finished) == (0.5, 10, 0, False)
    assert math.isnan(waiting.scheduled_s) and math.isnan(waiting.last_token_s)
    assert done == RequestRow(1.0, 2.0, 3.0, 5.0, True, 20, 3, 0, 0, 0, 0, 0.0)


def test_logs_are_equal_if_all_values_are():
    assert logged() == logged()
    for change in ({"preemptions": 1}, {"last_token_s": 5.000001}, {"hit_tokens": 4}, {"longest_gap_s": 1e-9}):
        assert logged(**change) != logged()


def test_a_million_rows_fit_into_65_megabytes():
    log = logged()
    assert sum(log.column(name).itemsize for name in TYPECODES) == 65
