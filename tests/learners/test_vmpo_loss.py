"""The losses of V-MPO: against numbers worked out beforehand, and against slow twins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.learners.common.torch_distributions import log_prob
from clusterenv.learners.vmpo.loss import chosen, divergences, e_step, policy_loss, trust_region_loss
from clusterenv.policy.distributions import Categorical, DiagGaussian
from tests.learners.kit import Source, tensor, vectors

E, M, G = vectors("vmpo_estep"), vectors("vmpo_mstep_categorical"), vectors("vmpo_mstep_gaussian")["diag"]
NAMED = ("odd_batch_of_7", "with_validity_mask", "ties", "overflow_case", "importance_weights")
CASES = [("plain", {"advantages": E["advantages"], **case}) for case in E["cases"]]
CASES += [(name, {"advantages": E["advantages"], **E[name]}) for name in NAMED]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_the_e_step_agrees_with_numbers_worked_out_beforehand(name: str, case: dict[str, Any]) -> None:
    advantage, eta = tensor(case["advantages"]), tensor(case["eta"]).requires_grad_()
    valid = torch.tensor(case["valid"]).bool() if "valid" in case else None
    weight = tensor(case["weights"]).log() if "weights" in case else None
    told = e_step(advantage, eta, epsilon=case["eps_eta"], valid=valid, log_weight=weight)
    told.temperature_loss.backward()  # type: ignore[no-untyped-call]
    assert len(chosen(advantage, valid=valid)) == case["k"]
    assert (told.psi > 0).double().tolist() == (case["mask"] if name != "overflow_case" else case["psi"])
    torch.testing.assert_close(told.psi, tensor(case["psi"]), rtol=1e-10, atol=1e-12)
    assert told.temperature_loss.item() == pytest.approx(case["temperature_loss"], rel=1e-12)
    assert eta.grad is not None
    assert eta.grad.item() == pytest.approx(case["dloss_deta"], rel=1e-9)
    assert told.psi_kl.item() == pytest.approx(case["kl_psi_to_uniform_on_selected"], rel=1e-9)


@pytest.mark.parametrize("case", E["cases"], ids=lambda case: f"eta={case['eta']}")
def test_the_policy_loss_agrees_with_numbers_worked_out_beforehand(case: dict[str, Any]) -> None:
    advantage = tensor(E["advantages"]).requires_grad_()
    eta = tensor(case["eta"]).requires_grad_()
    logp = tensor(E["logp_online"]).requires_grad_()
    got = policy_loss(e_step(advantage, eta, epsilon=case["eps_eta"]).psi, logp)
    got.backward()  # type: ignore[no-untyped-call]
    assert got.item() == pytest.approx(case["policy_loss"], rel=1e-12)
    torch.testing.assert_close(logp.grad, tensor(case["policy_loss_grad_wrt_logp"]))
    assert eta.grad is None
    assert advantage.grad is None


def test_the_loss_of_the_temperature_says_nothing_to_the_critic() -> None:
    advantage, eta = tensor(E["advantages"]).requires_grad_(), tensor(1.0).requires_grad_()
    e_step(advantage, eta, epsilon=0.1).temperature_loss.backward()  # type: ignore[no-untyped-call]
    assert advantage.grad is None
    assert eta.grad is not None


def test_at_the_best_temperature_the_weights_are_as_unequal_as_allowed() -> None:
    best = E["eta_star_for_eps_0p1"]
    told = e_step(tensor(E["advantages"]), tensor(best["eta"]), epsilon=0.1)
    assert told.psi_kl.item() == pytest.approx(0.1, rel=1e-9)
    torch.testing.assert_close(told.psi, tensor(best["psi"]))


@pytest.mark.parametrize("shift", [0.0, 3e4])
@pytest.mark.parametrize("eta", [1e-8, 1e-4, 1e-2, 1.0])
def test_the_gradient_of_the_temperature_does_not_drown_in_rounding(eta: float, shift: float) -> None:
    """In float32, at the smallest temperature there is, and where the critic is far off for all alike."""
    advantage = tensor(E["advantages"]).float() + shift
    temperature = torch.tensor(eta).requires_grad_()
    told = e_step(advantage, temperature, epsilon=0.1)
    told.temperature_loss.backward()  # type: ignore[no-untyped-call]
    assert temperature.grad is not None
    exact = 0.1 - e_step(advantage.double(), tensor(temperature.item()), epsilon=0.1).psi_kl.item()
    assert temperature.grad.item() == pytest.approx(exact, abs=1e-4)


def by_hand(
    advantage: list[float], eta: float, epsilon: float, share: float, valid: list[bool]
) -> tuple[list[float], float]:
    """The definition: sort, take the first half of the valid ones, softmax with the largest subtracted."""
    order = sorted((i for i in range(len(advantage)) if valid[i]), key=lambda i: (-advantage[i], i))
    best = order[: max(1, math.floor(share * len(order)))]
    top = max(advantage[i] / eta for i in best)
    total = sum(math.exp(advantage[i] / eta - top) for i in best)
    psi = [math.exp(advantage[i] / eta - top) / total if i in best else 0.0 for i in range(len(advantage))]
    return psi, eta * epsilon + eta * (top + math.log(total) - math.log(len(best)))


@settings(max_examples=60)
@given(
    numbers=st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.0, 1.0, 300.0]) | st.floats(-5, 5), min_size=1, max_size=20),
    holes=st.lists(st.booleans(), min_size=20, max_size=20),
    eta=st.sampled_from([1e-2, 0.5, 3.0]),
    share=st.sampled_from([0.3, 0.5, 1.0]),
)
def test_the_e_step_agrees_with_the_definition(
    numbers: list[float], holes: list[bool], eta: float, share: float
) -> None:
    valid = [True, *holes][: len(numbers)]
    told = e_step(tensor(numbers), tensor(eta), epsilon=0.1, share=share, valid=torch.tensor(valid))
    psi, loss = by_hand(numbers, eta, 0.1, share, valid)
    assert told.psi.tolist() == pytest.approx(psi, abs=1e-10)
    assert told.temperature_loss.item() == pytest.approx(loss, rel=1e-9, abs=1e-9)
    assert told.psi.sum().item() == pytest.approx(1.0)


def test_a_constant_added_to_all_advantages_changes_no_weight() -> None:
    plain, shifted = (e_step(tensor(E["advantages"]) + c, tensor(0.7), epsilon=0.1) for c in (0.0, 100.0))
    torch.testing.assert_close(plain.psi, shifted.psi)
    assert shifted.temperature_loss.item() == pytest.approx(plain.temperature_loss.item() + 100.0)


@pytest.mark.parametrize("case", M["cases"], ids=lambda case: f"{case['alpha']}-{case['eps_alpha']}")
def test_the_trust_region_agrees_with_numbers_worked_out_beforehand(case: dict[str, Any]) -> None:
    online = tensor(M["logits_online"]).requires_grad_()
    alpha = tensor([case["alpha"]]).requires_grad_()
    moved = divergences(Categorical(3), tensor(M["logits_target"]), online)
    torch.testing.assert_close(moved[0], tensor(M["kl_target_online"]))
    got = trust_region_loss(moved, alpha, epsilon=tensor([case["eps_alpha"]]))
    got.backward()  # type: ignore[no-untyped-call]
    assert got.item() == pytest.approx(case["loss_value"], rel=1e-12)
    torch.testing.assert_close(alpha.grad, tensor([case["dloss_dalpha"]]))
    torch.testing.assert_close(online.grad, tensor(case["dloss_dlogits_online"]))


def test_a_gaussian_has_two_trust_regions() -> None:
    mean, std = tensor(G["mean_online"]).requires_grad_(), tensor(G["std_online"]).requires_grad_()
    new = torch.cat([mean, std.log()], -1)
    old = torch.cat([tensor(G["mean_target"]), tensor(G["std_target"]).log()], -1)
    alpha = tensor([G["alpha_mu"], G["alpha_sigma"]]).requires_grad_()
    moved = divergences(DiagGaussian(2), old, new)
    torch.testing.assert_close(moved, tensor([G["kl_mu"], G["kl_sigma"]]))
    got = trust_region_loss(moved, alpha, epsilon=tensor([G["eps_mu"], G["eps_sigma"]]))
    got.backward()  # type: ignore[no-untyped-call]
    assert got.item() == pytest.approx(G["loss_value"], rel=1e-9)
    torch.testing.assert_close(alpha.grad, tensor([G["dloss_dalpha_mu"], G["dloss_dalpha_sigma"]]))
    torch.testing.assert_close(mean.grad, tensor(G["dloss_dmean_online"]))
    torch.testing.assert_close(std.grad, tensor(G["dloss_dstd_online"]), atol=1e-12, rtol=1e-9)
    logp = log_prob(DiagGaussian(2), new, tensor(G["actions"]))
    torch.testing.assert_close(logp, tensor(G["log_prob_online"]))


@given(seed=st.integers(0, 2**32), regions=st.integers(1, 2), count=st.integers(1, 6))
def test_the_trust_region_agrees_with_the_definition(seed: int, regions: int, count: int) -> None:
    source = Source(seed)
    moved = source.numbers(regions, count).abs().requires_grad_()
    alpha, epsilon = source.numbers(regions).abs().requires_grad_(), source.numbers(regions).abs()
    valid = torch.cat([torch.tensor([True]), source.flags(count - 1, share=0.5)])
    got = trust_region_loss(moved, alpha, epsilon=epsilon, valid=valid)
    got.backward()  # type: ignore[no-untyped-call]
    assert moved.grad is not None
    assert alpha.grad is not None
    kept = [i for i in range(count) if valid[i]]
    for c in range(regions):
        mean = sum(moved[c, i].item() for i in kept) / len(kept)
        assert alpha.grad[c].item() == pytest.approx(epsilon[c].item() - mean)
        share = [alpha[c].item() / len(kept) if i in kept else 0.0 for i in range(count)]
        assert moved.grad[c].tolist() == pytest.approx(share)
