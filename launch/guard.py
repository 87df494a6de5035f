"""Kills the processes that a launcher started, even after the launcher itself was killed with signal 9."""

import os
import subprocess

# A process that is killed with signal 9 cannot clean up. A separate shell can: its standard input closes.
# It ignores the signals that systemd and SLURM send to every process of a job, because the launcher still needs it.
SCRIPT = """
trap '' TERM INT HUP
while read -r line; do
    case $line in forget) groups= ;; *) groups="$groups $line" ;; esac
done
for group in $groups; do kill -9 "-$group"; done
"""


class Guard:
    """A helper shell that kills the registered process groups when this process ends for any reason.

    It kills them at once, because a new launch of the same command must not meet the old processes.
    """

    def __init__(self) -> None:
        silent = subprocess.DEVNULL
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT],
            stdin=subprocess.PIPE,  # only this process holds the other end, so it closes with this process
            stdout=silent,
            stderr=silent,
            start_new_session=True,
        )

    def start(self, command: list[str], **options) -> subprocess.Popen:
        """Starts a command in its own process group, which is registered before the command runs and so cannot escape.

        Raises:
          OSError: the command cannot be run.
        """
        # The code between fork and exec takes no lock, and these programs have no threads.
        return subprocess.Popen(
            command, start_new_session=True, preexec_fn=lambda: self._tell(str(os.getpid())), **options
        )

    def forget(self) -> None:
        """Unregisters all groups, because the number of a group that has ended may be reused."""
        self._tell("forget")

    def _tell(self, line: str) -> None:
        assert self._shell.stdin is not None
        os.write(self._shell.stdin.fileno(), f"{line}\n".encode())
