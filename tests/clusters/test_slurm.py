"""What Slurm and sbatch would not take as it is meant is refused before anything is submitted."""

from __future__ import annotations

import pytest

from clusterenv.clusters import Slurm, parse_remote
from clusterenv.errors import ConfigError

BAD_OPTIONS = {
    "a newline": ("--comment=a\n#SBATCH --uid=0", "without blanks"),
    "a blank": ("--comment=a b", "without blanks"),
    "a quote": ('--comment="a"', "without blanks"),
    "another quote": ("--comment='a'", "without blanks"),
    "a hash": ("--comment=#", "without blanks"),
    "a backslash": ("--comment=\\n", "without blanks"),
    "a shell": ("--comment=$(id)", "without blanks"),
    "a short option": ("-N4", "a long option"),
    "no option": ("mem=8G", "a long option"),
    "two options": ("--mem=8G --uid=0", "without blanks"),
    "unicode": ("--comment=\u00e4", "without blanks"),
    "long": ("--comment=" + "x" * 600, "a long option"),
    "a name": ("--job-name=me", "Leave it out"),
    "one of ours": ("--nodes=4", "Use nodes= in its place"),
    "the beginning of one of ours": ("--node=4", "Use nodes= in its place"),
    "the beginning of another": ("--out=/x", "Leave it out"),
    "an array": ("--array=1-4", "Leave it out"),
    "another action": ("--test-only", "Leave it out"),
    "another script": ("--wrap=true", "Leave it out"),
}


@pytest.mark.parametrize(("option", "says"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_a_bad_option_of_sbatch_is_refused(option: str, says: str) -> None:
    with pytest.raises(ConfigError, match="slurm: extra=") as caught:
        Slurm(extra=(option,))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [
        "--mem=8G",
        "--exclusive",
        "--constraint=[a|b]&c*2",
        "--gres=gpu:a100:1",
        "--exclude=n[1-3,7]",
        "--hold",
        "--time-min=5",
    ],
)
def test_usual_options_of_sbatch_are_taken(option: str) -> None:
    assert parse_remote(Slurm(extra=(option,)).text) == Slurm(extra=(option,))


@pytest.mark.parametrize("time", ["61", "5:30", "2:00:00", "1-0", "1-12:30", "1-00:00:00", "UNLIMITED", "INFINITE"])
def test_the_times_of_slurm_are_taken(time: str) -> None:
    assert Slurm(time=time).time == time
