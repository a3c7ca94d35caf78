"""bsuite: Catch, which is also the template for an env of your own."""

from __future__ import annotations

from envfleet.core.family import Family

FAMILY = Family("bsuite", ("Catch-v0",))
