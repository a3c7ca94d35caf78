"""python -m envfleet: the command line."""

import sys

from envfleet.cli import main

if __name__ == "__main__":
    sys.exit(main())
