"""The versions of frameworks that the apis take."""

from __future__ import annotations

import pytest

from envfleet import EnvfleetError, UnsupportedVersionError
from envfleet.apis.common.versions import check_version


@pytest.mark.parametrize("installed", ["2.6", "2.6.0", "2.9.2", "2.10.1a3", "2.8.0+cpu"])
def test_a_version_in_the_range_is_taken(installed):
    check_version("sb3", "stable-baselines3", installed, "2.6", "3", "2.6 to 2.9")


@pytest.mark.parametrize("installed", ["1.8.0", "2.5.9", "3.0.0", "unknown"])
def test_another_is_refused_in_one_sentence(installed):
    with pytest.raises(UnsupportedVersionError) as caught:
        check_version("sb3", "stable-baselines3", installed, "2.6", "3", "2.6 to 2.9")
    assert isinstance(caught.value, (EnvfleetError, ImportError))
    assert str(caught.value) == (
        f"the sb3 api expected stable-baselines3>=2.6,<3 (tested: 2.6 to 2.9), got {installed}; "
        'run: pip install "stable-baselines3>=2.6,<3"'
    )


def test_without_an_upper_end_every_later_one_is_taken():
    check_version("torchrl", "torchrl", "1.0", "0.14", None, "0.14")
