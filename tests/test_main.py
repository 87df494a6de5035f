"""``python -m jaxformer`` is the command ``jaxformer``."""

import subprocess
import sys


def test_the_module_is_the_command():
    shown = subprocess.run([sys.executable, "-m", "jaxformer", "--version"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout.startswith("jaxformer ")) == (0, True)
    alone = subprocess.run([sys.executable, "-m", "jaxformer"], capture_output=True, text=True)
    assert (alone.returncode, "  jaxformer demo\n" in alone.stdout) == (0, True)
    wrong = subprocess.run([sys.executable, "-m", "jaxformer", "fly"], capture_output=True, text=True)
    assert (wrong.returncode, "unknown command 'fly'" in wrong.stderr) == (2, True)
