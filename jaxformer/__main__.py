"""``python -m jaxformer``: the command line, where the script is not on the path."""

import sys

from jaxformer.cli.main import script

if __name__ == "__main__":
    sys.exit(script())
