"""Who is killed by signal 9 can do nothing for what it has started; a shell beside it can."""

import os
import subprocess

SCRIPT = """
while read -r line; do
    case $line in forget) groups= ;; *) groups="$groups $line" ;; esac
done
for group in $groups; do kill -9 "-$group"; done
"""


class Guard:
    """Kills the process groups it was told of, and not to forget, when this process is gone, however it went.

    At once, for whoever starts the same again at once must not meet those of before.
    """

    def __init__(self) -> None:
        silent = subprocess.DEVNULL
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT],
            stdin=subprocess.PIPE,  # which ends with this process: nobody else has it
            stdout=silent,
            stderr=silent,
            start_new_session=True,
        )

    def start(self, command: list[str], **more) -> subprocess.Popen:
        """A command as a process group of its own, told of before it runs: there is no moment when it could escape.

        Raises:
          OSError: the command cannot be run.
        """
        # What runs between fork and exec takes no lock, and these programs have no threads.
        return subprocess.Popen(
            command, start_new_session=True, preexec_fn=lambda: self._tell(str(os.getpid())), **more
        )

    def forget(self) -> None:
        """All so far: the number of a group that has ended may be another's by now."""
        self._tell("forget")

    def _tell(self, line: str) -> None:
        assert self._shell.stdin is not None
        os.write(self._shell.stdin.fileno(), f"{line}\n".encode())
