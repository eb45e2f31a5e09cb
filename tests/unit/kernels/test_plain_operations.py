"""Operations as plain Python, as a person steps through them, give the compiled bits."""

import os
import subprocess
import sys

import numpy as np
import plain_operations
from kernel_inputs import assert_same_bits


def test_plain_python_gives_the_compiled_bits(tmp_path):
    file = tmp_path / "plain.npz"
    command = [sys.executable, "-W", "error", plain_operations.__file__, str(file)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = plain_operations.results()
    with np.load(file) as plain:
        assert plain.files == list(compiled)
        for name in plain.files:
            assert_same_bits(plain[name], compiled[name], name)
