"""Plants a fault in a copy of a kernel file, to prove that the tests would see it. Knows no kernel."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def planted(folder: Path, module: ModuleType, right: str, wrong: str, **replaced: ModuleType) -> ModuleType:
    """A copy of `module` in which `right`, which must stand there exactly once, is `wrong`.

    replaced: modules of mini_vllm.kernels that the copy takes its own imports from, by name.
    """
    source = Path(module.__file__).read_text()
    assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times in {module.__name__}"
    source = source.replace(right, wrong)
    for name, copy in replaced.items():
        assert f"from mini_vllm.kernels.{name} import" in source
        source = source.replace(f"from mini_vllm.kernels.{name} import", f"from {copy.__name__} import")
    name = f"planted_{module.__name__.rpartition('.')[2]}_{len(sys.modules)}"
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[name] = copy  # Triton finds a kernel's source through its module
    spec.loader.exec_module(copy)
    return copy
