"""Which versions of packages are installed, for the records that figures and texts rest on."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The version of each package, by the name it is installed under; None of one that is not installed."""
    return {package: _installed(package) for package in packages}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
