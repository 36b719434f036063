"""This service's handlers on `tornado.httpserver.HTTPServer`: only the HTTP server differs.

Its argument is a ``config.yaml`` instead of the contract file.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop
from tornado.httpserver import HTTPServer

from tornado_idv.config.load import ConfigFile
from tornado_idv.keys.ring import KeyRing
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.directories import open_directory
from tornado_idv.web.app import make_api
from tornado_idv.web.lookups import ApiContext


async def serve(port: int, config: Path) -> None:
    manager = plugin_manager()
    settings = ConfigFile.read(config).load(installed_kinds(manager), {})
    access_log = configure_logging(settings.logging.level, settings.logging.format).access
    keys = KeyRing(entry.api_key for entry in settings.auth.keys)
    async with open_directory(settings, manager) as directory:
        api = ApiContext(directory, settings.make_identifiers(), keys, access_log)
        HTTPServer(make_api(api)).listen(port, "127.0.0.1")
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
