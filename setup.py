"""The package and its plugins: two source roots, one distribution.

``plugins/`` is a second root, so that a plugin's folder name is its import
name and no package called ``plugins`` is ever installed.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent

POSTGRES = ["asyncpg>=0.30,<1"]
LDAP = ["python-ldap>=3.4.4,<4"]
REDIS = ["redis>=6,<9"]

TESTS = [
    *POSTGRES,
    *REDIS,
    "cryptography>=42",
    "hypothesis>=6.100",
    "jsonschema>=4.20",
    "openapi-core>=0.23,<1",
    "openapi-spec-validator>=0.8",
    "pytest>=9,<10",
    "pytest-cov>=6",
    "pytest-timeout>=2.3",
    "pytest-tornasync>=0.6.0.post2",
    "pytest-xdist>=3.7",
    "rich>=13",
    "selenium>=4.30,<5",
    "setuptools>=77",
    "trustme>=1.2",
]

os.umask(0o022)  # the modes of generated files are in the archives


class ReproducibleSdist(sdist):
    """Builds the same archive from the same files, at the time ``SOURCE_DATE_EPOCH``.

    That is the time of each entry (reproducible-builds.org); setuptools does so for wheels.
    """

    def make_archive(self, base_name: str, *_: object, base_dir: str, **__: object) -> str:
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
        path = f"{base_name}.tar.gz"

        def normalized(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        with (
            Path(path).open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(base_dir, filter=normalized)  # sorted by name
        return path


setup(
    name="tornado-idv",
    version="1.0.0rc1",
    cmdclass={"sdist": ReproducibleSdist},
    description="Does this user exist, and who is it? A lookup service over HTTP and JSON.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["tornado_idv", "tornado_idv.*"]) + find_packages("plugins"),
    package_dir={"": "plugins", "tornado_idv": "tornado_idv"},
    package_data={
        "tornado_idv": ["py.typed"],
        "tornado_idv.features.docs": ["static/*"],
        "tornado_idv.features.keys": ["starter/*"],
        "tornado_idv.features.status": ["static/*"],
    },
    install_requires=[
        "aiohttp>=3.13,<4",
        "aiosqlite>=0.20",
        "cachetools>=8,<9",
        "click>=8.4",
        "httptools>=0.9,<1",
        "jmespath>=1.1,<2",
        "msgspec>=0.19,<1",
        "multidict>=6",
        "pluggy>=1.5",
        "prometheus-client>=0.21,<1",
        "pydantic>=2.10,<3",
        "python-mimeparse>=2",
        "PyYAML>=6.0.1",
        "tornado>=6.6.1,<7",
        "uvloop>=0.21; sys_platform != 'win32'",
        "yarl>=1.20",
    ],
    extras_require={
        "ldap": LDAP,
        "postgres": POSTGRES,
        "redis": REDIS,
        "test": TESTS,
        "dev": [
            *TESTS,
            "build>=1.2",
            "click-man>=0.5",
            "griffe-public-redundant-aliases>=0.3,<1",
            "import-linter>=2.1",
            "mkdocs-material>=9.6,<10",
            "mkdocstrings[python]>=1,<2",
            "mypy>=1.15",
            "ruff>=0.9",
            "types-PyYAML",
            "types-jmespath",
        ],
    },
    entry_points={
        "console_scripts": ["tornado-idv = tornado_idv.cli:main"],
        "pytest11": ["tornado_idv = tornado_idv.double.pytest_plugin"],
        "tornado_idv": [
            "ldap = idv_ldap",
            "postgres = idv_postgres",
            "redis = idv_redis",
            "sqlite = idv_sqlite",
            "upstream = idv_upstream",
            "yaml = idv_yaml",
        ],
    },
    keywords=["user directory", "lookup", "proxy", "cache", "tornado"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: No Input/Output (Daemon)",
        "Framework :: AsyncIO",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: System :: Systems Administration :: Authentication/Directory",
        "Typing :: Typed",
    ],
)
