"""torch_mpi/src/README.rst names each source and the tests that cover it."""

import re

from mpi_installation import HERE, PROJECT


def test_every_source_is_on_the_map_and_every_test_it_names_exists():
    text = (PROJECT / "src" / "README.rst").read_text()
    named = set(re.findall(r"``(\w+\.\w+)``", text))
    sources = {path.name for pattern in ("src/*.cpp", "src/*.h", "*.py", "*/_*.py") for path in PROJECT.glob(pattern)}
    headers = {name for name in sources if name.endswith(".h") and name.replace(".h", ".cpp") in sources}
    assert sources - headers - {"all.cpp", "__init__.py"} <= named
    tests = {name for name in named if name.startswith(("test_", "torch_versions"))}
    assert tests <= {path.name for path in HERE.rglob("*.py")}
