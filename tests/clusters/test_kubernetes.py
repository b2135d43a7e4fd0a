"""What Kubernetes would refuse is refused before anything is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from clusterenv.clusters import Kubernetes, parse_remote
from clusterenv.errors import ConfigError

BAD_PODS: dict[str, dict[str, Any]] = {
    "an image with a blank": {"image": "a b"},
    "an image with a shell": {"image": "a;rm"},
    "an image in capitals": {"image": "Me/Envs"},
    "an image that is an option": {"image": "--privileged"},
    "an image with two tags": {"image": "a:1:2"},
    "an image with a short digest": {"image": "a@sha256:12"},
    "an image with a newline": {"image": "a\n"},
    "a long image": {"image": "a" * 513},
    "no image": {"image": ""},
    "a namespace with a path": {"namespace": "../kube-system"},
    "a namespace in capitals": {"namespace": "Team"},
    "a namespace with a dash at its end": {"namespace": "a-"},
    "a long namespace": {"namespace": "a" * 64},
    "memory without a unit": {"memory": "4096"},
    "memory in words": {"memory": "lots"},
    "negative memory": {"memory": "-4Gi"},
    "no memory at all": {"memory": "0Gi"},
    "no shm": {"shm": ""},
    "shm in another unit": {"shm": "1GB"},
    "a selector without a value": {"selector": ("pool",)},
    "a selector with two": {"selector": ("a=b=c",)},
    "a selector with a bad prefix": {"selector": ("A_b/c=d",)},
    "a taint with a blank": {"tolerate": ("a b",)},
    "an empty taint": {"tolerate": ("",)},
    "a taint with a newline": {"tolerate": ("a\n",)},
    "a priority with a slash": {"priority": "a/b"},
    "a pull secret in capitals": {"pull_secret": "S"},
    "too many cpus": {"cpus": 1025},
}


@pytest.mark.parametrize("values", BAD_PODS.values(), ids=BAD_PODS.keys())
def test_what_kubernetes_would_not_take_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"k8s: .*{next(iter(values))}=") as caught:
        Kubernetes(**values)
    assert "must be" in str(caught.value) or "may not be empty" in str(caught.value)


@pytest.mark.parametrize(
    "image", ["a", "a:1", "a/b/c:1.0_x", "r.example/a", "r:5000/a@sha256:" + "0" * 64, "a__b", "a--b"]
)
def test_usual_names_of_images_are_taken(image: str) -> None:
    assert parse_remote(Kubernetes(image=image).text) == Kubernetes(image=image)
