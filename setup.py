"""The package and its plugins: two source roots, one distribution.

``plugins/`` is a second root, so that a plugin's folder name is its import
name and no package called ``plugins`` is ever installed.
"""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

POSTGRES = ["asyncpg>=0.30,<1"]
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
    "pytest-xdist>=3.6",
    "selenium>=4.30,<5",
    "setuptools>=77",
    "trustme>=1.2",
]

setup(
    name="tornado-idv",
    version="0.1.0",
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
        "tornado_idv.admin": ["static/*"],
        "tornado_idv.web": ["static/*"],
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
        "rich>=13",
        "tornado>=6.6.1,<6.7",
        "uvloop>=0.21; sys_platform != 'win32'",
        "watchfiles>=1",
        "yarl>=1.20",
    ],
    extras_require={
        "postgres": POSTGRES,
        "redis": REDIS,
        "test": TESTS,
        "dev": [
            *TESTS,
            "build>=1.2",
            "click-man>=0.5",
            "import-linter>=2.1",
            "mkdocs-material>=9.6,<10",
            "mypy>=1.15",
            "ruff>=0.9",
            "types-PyYAML",
            "types-jmespath",
        ],
    },
    entry_points={
        "console_scripts": ["tornado-idv = tornado_idv.cli:main"],
        "tornado_idv": [
            "postgres = idv_postgres",
            "redis = idv_redis",
            "sqlite = idv_sqlite",
            "upstream = idv_upstream",
            "yaml = idv_yaml",
        ],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Framework :: AsyncIO",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Typing :: Typed",
    ],
)
