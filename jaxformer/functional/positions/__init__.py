"""Positions, one scheme a file."""

from jaxformer.functional.positions.learned import check_positions as check_positions
from jaxformer.functional.positions.learned import learned as learned
from jaxformer.functional.positions.sinusoidal import sinusoidal as sinusoidal
