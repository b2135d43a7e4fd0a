"""`clusterenv`: finds the command, runs it, and turns what happens into one message and an exit code.

0 fine   1 the run failed   2 wrong usage   3 the cluster could not start   4 too many workers lost   130 Ctrl-C
143 SIGTERM   129 SIGHUP   140 SIGUSR2
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from clusterenv import __version__, extras
from clusterenv.cli.exits import FAILED, INTERRUPTED, OK, USAGE, Terminated, code_of, complain, notes_of, say
from clusterenv.cli.repeated import refuse_repeated
from clusterenv.cli.signals import stopped_by_signals
from clusterenv.errors import ClusterEnvError, ConfigError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HELP = """\
usage: clusterenv COMMAND ...

  clusterenv train ppo --env-id CartPole-v1 --cluster local:2   train an agent
  clusterenv plot RUN...                                        draw learning curves
  clusterenv eval RUN --episodes 20                             let the agent of a run play, and say how well
  clusterenv bench --tune --env-id CartPole-v1                  measure, and say where the policy should act
  clusterenv doctor --cluster ssh://a,b                         try a cluster, and say what is wrong
  clusterenv join cluster://HOST:PORT                           let this machine take part in a run
  clusterenv node --head ADDRESS --key-file FILE                the same, as launchers start it
  clusterenv --version

clusterenv train ppo --help, clusterenv eval --help, clusterenv bench --help, ...: all that can be set.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt as stop:
        # The command has said what there is to say, unless it was stopped before it could.
        if not getattr(stop, "told", False):
            with contextlib.suppress(OSError):  # the terminal is gone
                complain("Stopped.")
        return stop.code if isinstance(stop, Terminated) else INTERRUPTED
    except ClusterEnvError as error:
        complain("\n".join([f"{type(error).__name__}: {error}", *notes_of(error)]))
        return code_of(error)
    except OSError as error:
        complain("\n".join([f"{type(error).__name__}: {error}", *notes_of(error)]))
        return FAILED


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] in (["--version"], ["-V"]):
        say(f"clusterenv {__version__}")
        return OK
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        say(HELP.rstrip())
        return OK if arguments else USAGE
    refuse_repeated(arguments[1:])
    command = _commands().get(arguments[0])
    if command is None:
        raise ConfigError(unknown("command", arguments[0], _commands()))
    if arguments[0] in ("node", "join"):  # to these, a signal says that the host is wanted back
        return command(arguments[1:])
    with stopped_by_signals():
        return command(arguments[1:])


def _commands() -> dict[str, Callable[[list[str]], int]]:
    return {
        "train": _train,
        "plot": _plot,
        "eval": _eval,
        "bench": _bench,
        "node": _node,
        "join": _join,
        "doctor": _doctor,
    }


def _bench(arguments: list[str]) -> int:
    for module in ("tyro", "torch"):
        extras.load(module, extra="train", purpose="clusterenv bench")
    from clusterenv.cli import bench

    return bench.run(arguments)


def _doctor(arguments: list[str]) -> int:
    from clusterenv.cli import doctor

    return doctor.run(arguments)


def _node(arguments: list[str]) -> int:
    from clusterenv.cli import node

    return node.node(arguments)


def _join(arguments: list[str]) -> int:
    from clusterenv.cli import node

    return node.join(arguments)


def _train(arguments: list[str]) -> int:
    from clusterenv.learners import catalog

    if not arguments or arguments[0] in ("--help", "-h"):
        titles = "\n".join(f"  {each.name:<8}{each.title}" for each in catalog.LEARNERS.values())
        say(f"usage: clusterenv train ALGORITHM ...\n\nalgorithms:\n{titles}")
        return OK if arguments else USAGE
    entry = catalog.find(arguments[0])
    for module in ("tyro", "rich", "safetensors", "tomli_w", "torch"):
        extras.load(module, extra="train", purpose="clusterenv train")
    from clusterenv.cli import train

    return train.run(entry, arguments[1:])


def _plot(arguments: list[str]) -> int:
    for module in ("tyro", "matplotlib"):
        extras.load(module, extra="train", purpose="clusterenv plot")
    from clusterenv.cli import plot

    return plot.run(arguments)


def _eval(arguments: list[str]) -> int:
    for module in ("tyro", "safetensors", "torch"):
        extras.load(module, extra="train", purpose="clusterenv eval")
    from clusterenv.cli import evaluate

    return evaluate.run(arguments)
