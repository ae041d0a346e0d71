"""What is advised to someone who lacks an extra."""

import doctest

from storage import extras


def test_a_checkout_is_installed_as_editable_and_a_wheel_by_its_file() -> None:
    """Both forms are examples of the function."""
    assert doctest.testmod(extras).failed == 0
    assert doctest.testmod(extras).attempted == 2
    assert extras.install_command("train") == "pip install -e '.[train]'", "tests run in a checkout"
