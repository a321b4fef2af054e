"""The package needs only the standard library, and loads quickly."""

import json
import subprocess
import sys

LOADED = """
import json, sys
before = set(sys.modules)
import mini_vllm.roofline as roofline
roofline.gpu_constants()
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(names - set(sys.stdlib_module_names) - {"mini_vllm"})))
"""


def test_only_the_standard_library():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
