"""Tutorials as scripts: runs the blocks of a page in one shell, and compares their output.

A block of the language ``sh`` must succeed. In a ``console`` block the output of each command must
be that of the page, where ``…`` stands for any text. Ports are replaced by free ones.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.pages import all_blocks
from support.processes.ports import free_port, listens
from support.processes.process import eventually
from support.processes.proxies import SEARCH_PATH, find_tool
from support.processes.shell_commands import ShellCommands, shell_commands

_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
_PORT = re.compile(r"(?<=[: ])(?:80|90)\d\d\b")
_SERVER = re.compile(r"tornado-idv serve|nginx|python3 (-m|\S+\.py$)")
_END = "end of the command, exit code"
# A change is visible within a second: these are repeated until they respond as documented.
_REPEATED = ("curl ", "identify ", "tornado-idv health")


@dataclass
class Shell:
    """A bash process that runs one command after the other."""

    process: subprocess.Popen[str]

    def run(self, command: str) -> tuple[int, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n_code=$?; echo; echo {_END} $_code\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(_END):
                return int(line.split()[-1]), "".join(lines).removesuffix("\n")
            lines.append(line)
        raise AssertionError("".join(lines))


@dataclass
class Walk:
    """A page whose blocks are run in their order."""

    text: str
    shell: Shell
    commands: ShellCommands
    ports: Mapping[str, int]

    def follow(self) -> None:
        run = {"console": self.compare, "sh": self.script}
        blocks = [each for each in all_blocks(self.text) if each[1] in run]
        assert blocks
        for _, language, block in blocks:
            run[language](block)

    def script(self, block: str) -> None:
        """Run a block; a server on its last line goes on in the background."""
        before, _, last = block.rstrip().rpartition("\n")
        if not _SERVER.match(last):
            before, last = block, ""
        if before:
            code, output = self.shell.run(before)
            assert code == 0, f"{before}{output}"
        if last:
            self.start(last)

    def start(self, command: str) -> None:
        """Start a server in the background; wait until it listens on its ports of the page."""
        before = {port for port in self.ports.values() if listens(port)}
        code, output = self.shell.run(f"{command} > serve.log 2>&1 &")
        assert code == 0, output
        eventually(lambda: {port for port in self.ports.values() if listens(port)} - before)
        if command.startswith("tornado-idv serve"):  # its admin listener was the first
            eventually(lambda: "Listening on" in self.shell.run("cat serve.log")[1])

    def compare(self, block: str) -> None:
        commands = _COMMAND.findall(block)
        assert "".join(f"$ {command}{expected}" for command, expected in commands) == block
        for command, expected in commands:
            pattern = re.compile(".*".join(map(re.escape, expected.strip().split("…"))), re.DOTALL)
            output = self.output_of(command, pattern)
            assert pattern.fullmatch(output), f"$ {command}{output}\nnot\n{expected}"

    def output_of(self, command: str, pattern: re.Pattern[str]) -> str:
        """Return the output; of a command that is repeated, the first that fits the pattern."""
        outputs: list[str] = []

        def fits() -> bool:
            outputs.append(self.shell.run(command)[1].strip())
            return pattern.fullmatch(outputs[-1]) is not None

        if not fits() and command.startswith(_REPEATED):
            with suppress(AssertionError):  # that of the caller has the output
                eventually(fits)
        return outputs[-1]


@contextmanager
def walk(text: str, folder: Path, *tools: str) -> Iterator[Walk]:
    """A page, or a part of it, with ports of its own, and a shell in the folder.

    Skips the test where bash or, if the page needs it, curl is not installed.

    ``tools`` are folders of programs that it needs.
    """
    if "curl " in text:
        find_tool("curl")
    ports = {port: free_port() for port in sorted(set(_PORT.findall(text)))}
    text = _PORT.sub(lambda port: str(ports[port[0]]), text)
    programs = folder / "programs"
    programs.mkdir()
    path = os.pathsep.join((str(programs), *tools, SEARCH_PATH))
    with (
        shell_commands(programs) as commands,
        subprocess.Popen(
            [find_tool("bash")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PATH": path, "HOME": str(folder)},
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Walk(text, Shell(process), commands, ports)
        finally:
            for command in commands.started:
                commands.stop(*command)
            os.killpg(process.pid, signal.SIGKILL)  # also what it has started
