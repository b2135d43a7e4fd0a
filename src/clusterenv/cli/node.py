"""`clusterenv node` and `clusterenv join`: this host takes part in a cluster."""

from __future__ import annotations

import getpass
import logging
import os
import pathlib
import sys
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from clusterenv.cli.exits import LOST, OK, banner, complain
from clusterenv.clusters import MAX_NODES, MAX_WORKERS_PER_NODE
from clusterenv.errors import ConfigError
from clusterenv.node.member import Membership, run_node
from clusterenv.transport.security import NodeKeys, parse_keys, read_key_file
from clusterenv.transport.sockets import Address, parse_address

_MAX_LINE = 4096
TOKEN_VARIABLE = "CLUSTERENV_TOKEN"  # noqa: S105 (its name, not its value)


@dataclass(frozen=True, kw_only=True)
class NodeArgs:
    """Run the environments of a head on this host. Launchers start this; by hand, `clusterenv join` is for people."""

    head: str
    """where the head listens: tcp+curve://HOST:PORT, several with commas between them"""
    key_file: str
    """the keys of the run: a file that only you can read, or - for the first line of standard input, which must stay
    open: when it closes, the node ends"""
    imports: Annotated[list[str], tyro.conf.arg(name="import"), tyro.conf.UseAppendAction] = field(default_factory=list)
    """a module to import first, so that its environments are known here; may be given several times"""
    workers: int = 0
    """how many worker processes; 0 for one per core"""
    name: str = ""
    """what this node is called in messages; empty for the name of the host"""
    index: int | None = None
    """which node of its launcher this is; None takes it from the variables of Slurm or Kubernetes, if they are there"""
    insecure: bool = False
    """no encryption and no proof of who is who, as the head was started: for a network on which you trust everybody"""
    alive_file: str = ""
    """for an engine that watches its nodes and replaces them, as Kubernetes does: a file that is touched as long as the
    node is in touch with the head; and the exit code is 0 only if the head has told the node to end, 4 if not"""


@dataclass(frozen=True, kw_only=True)
class JoinArgs:
    """Let this machine take part in a run that waits for it.

    The token comes from a file, from the environment variable CLUSTERENV_TOKEN, or from a prompt.
    """

    head: Annotated[str, tyro.conf.Positional]
    """where the head listens, as it says: cluster://HOST:PORT"""
    token_file: pathlib.Path | None = None
    """a file with the token that only you can read"""
    imports: Annotated[list[str], tyro.conf.arg(name="import"), tyro.conf.UseAppendAction] = field(default_factory=list)
    """a module to import first, so that its environments are known here; may be given several times"""
    workers: int = 0
    """how many worker processes; 0 for one per core"""
    name: str = ""
    """what this node is called in messages; empty for the name of the host"""
    insecure: bool = False
    """no encryption and no proof of who is who, as the head was started: for a network on which you trust everybody"""
    keep_trying: float = 0.0
    """how long to look for the head, in seconds: at the start, and when it is gone without a word, so that another head
    of the same run finds this machine waiting; 0 to end with the head"""


def node(argv: list[str]) -> int:
    """Run `clusterenv node`."""
    args = tyro.cli(NodeArgs, prog="clusterenv node", args=argv)
    from_stdin = args.key_file == "-"
    keys = _first_line() if from_stdin else read_key_file(pathlib.Path(args.key_file))
    index = _own_index() if args.index is None else args.index
    told = _run(args.head, keys, args, index=index, stdin=from_stdin, alive_file=args.alive_file)
    return OK if told or not args.alive_file else LOST


def join(argv: list[str]) -> int:
    """Run `clusterenv join`."""
    args = tyro.cli(JoinArgs, prog="clusterenv join", args=argv)
    if args.token_file is not None:
        keys = read_key_file(args.token_file)
    else:
        keys = parse_keys(os.environ.pop(TOKEN_VARIABLE, "") or _asked())
    if not 0 <= args.keep_trying < 1e9:  # NaN is refused as well
        raise ConfigError(f"--keep-trying {args.keep_trying} must be seconds, from 0 to 1e9.")
    _run(args.head, keys, args, index=None, stdin=False, keep_trying_s=args.keep_trying)
    return OK


def _asked() -> str:
    try:
        return getpass.getpass("token: ")
    except EOFError:
        raise ConfigError(f"there is no token. Pass --token-file, or set {TOKEN_VARIABLE}.") from None


def _own_index() -> int | None:
    for variable in ("SLURM_PROCID", "JOB_COMPLETION_INDEX"):
        number = os.environ.get(variable, "")
        if number.isdecimal():
            return int(number)
    return None


def _run(
    head: str,
    keys: NodeKeys,
    args: NodeArgs | JoinArgs,
    *,
    index: int | None,
    stdin: bool,
    alive_file: str = "",
    keep_trying_s: float = 0.0,
) -> bool:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _check_number("--workers", args.workers, MAX_WORKERS_PER_NODE)
    if index is not None:
        _check_number("--index", index, MAX_NODES - 1)
    heads = [_address(each, insecure=args.insecure) for each in head.split(",")]
    if args.insecure:
        complain(banner())
    membership = Membership(
        heads=heads,
        keys=keys,
        imports=tuple(args.imports),
        workers=args.workers,
        name=args.name,
        index=index,
        stdin=stdin,
        alive_file=alive_file,
        keep_trying_s=keep_trying_s,
    )
    return run_node(membership)


def _check_number(name: str, number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise ConfigError(f"{name} {number} must be between 0 and {most}.")


def _address(text: str, *, insecure: bool) -> Address:
    """The address of a head; what it says about encryption and what was typed must be the same."""
    address = parse_address(text)
    if text.startswith("cluster://"):
        return address._replace(secure=not insecure)
    if insecure and address.secure:
        raise ConfigError(f"--insecure with {address.url}: this head wants encryption and keys. Leave --insecure out.")
    if not insecure and not address.secure:
        raise ConfigError(f"{address.url} has no encryption. Type --insecure if you trust everybody on this network.")
    return address


def _first_line() -> NodeKeys:
    if sys.stdin is None:  # it was closed before we started
        raise ConfigError("--key-file -: standard input is closed. Send the keys through it, or name a file.")
    # Byte by byte, so that nothing behind the line is taken from whoever reads next.
    line = b""
    while len(line) < _MAX_LINE and not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    return parse_keys(line.decode(errors="replace"))
