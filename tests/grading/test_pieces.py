"""Which neighbours of a marked cell belong to a split answer. Tiny cells; nothing is run."""

import pytest

from mini_vllm.grading.pieces import joined

MAIN = "def f(x):\n    return g(x)"


@pytest.mark.parametrize(
    ("cells", "main", "expected"),
    [
        pytest.param(["def f(x):\n    return x"], 0, [0], id="whole"),
        pytest.param([MAIN, "def g(x):\n    return x"], 0, [0, 1], id="helper below"),
        pytest.param(["g = lambda x: x", MAIN], 1, [0, 1], id="helper above"),
        pytest.param(["from m import g", MAIN], 1, [0, 1], id="import above"),
        pytest.param([MAIN, "f(3)", "1 / 0"], 0, [0], id="play cells"),
        pytest.param([MAIN, "f(3)", "def g(x):\n    return x"], 0, [0, 2], id="helper behind a play cell"),
        pytest.param(["g = 1", MAIN, "g = 2"], 1, [1, 2], id="the one below first"),
        pytest.param([MAIN, "g = h", "h = 3"], 0, [0, 1, 2], id="helpers of helpers"),
        pytest.param(["# only the marker", "def f(x):\n    return x"], 0, [0, 1], id="marker alone"),
        pytest.param(["import os", "x = 1"], 0, [0], id="defined nowhere"),
        pytest.param(["def f(x):", "    return x"], 0, [0, 1], id="cut behind the colon"),
        pytest.param(["def f(x):\n    y = 1", "    return y"], 0, [0, 1], id="cut in the body"),
        pytest.param(["def f(x):\n    y = [", "    1]", "    return y"], 0, [0, 1, 2], id="cut twice"),
        pytest.param(["def f(x:", "f(3)"], 0, [0], id="a mistake stays one"),
        pytest.param(["%time 1\ndef f(x):\n    return len(x)", "!ls"], 0, [0], id="magics"),
        pytest.param(["def f(x):\n    try:\n        import q\n    except E as e:\n        return e, q", "E = 1"], 0,
                     [0, 1], id="handlers and imports inside"),
    ],
)  # fmt: skip
def test_pieces(cells, main, expected):
    assert joined(cells, main, "f") == expected


@pytest.mark.parametrize("source", ["(" * 500, "\0", "x = " + "-" * 100_000 + "1", "f" + ".a" * 100_000])
def test_hostile_sources_end(source):
    assert 0 in joined([source, "def f(): pass"], 0, "f")
