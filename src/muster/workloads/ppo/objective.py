"""The terms of proximal policy optimization, each with its source. All tensors are (answers, tokens).

Sources: Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347 (PPO); Schulman et
al. 2016, High-dimensional continuous control using generalized advantage estimation, arXiv:1506.02438 (GAE);
Ouyang et al. 2022, Training language models to follow instructions with human feedback, arXiv:2203.02155
(InstructGPT); DeepSpeed-Chat's dschat/rlhf/ppo_trainer.py at DeepSpeedExamples 5ff0211.

`mask` is 1 for tokens of an answer, its end included; 0 for prompts, padding and what comes after the end.
"""

from __future__ import annotations

import torch


def log_probs_of(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return log pi(token | what is before it), in fp32, of the distribution that is drawn from:
    softmax(logits / temperature). `logits`: (answers, tokens, vocabulary), each row the model's before its
    token."""
    scaled = logits.float() / temperature
    return scaled.gather(-1, tokens[..., None])[..., 0] - scaled.logsumexp(-1)


def entropy_of(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return -sum p log p over the vocabulary, in nats."""
    logs = (logits.float() / temperature).log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def token_rewards(
    scores: torch.Tensor, divergence: torch.Tensor, mask: torch.Tensor, kl: float, limit: float | None
) -> torch.Tensor:
    """Return r_t = -kl (log pi(a_t) - log pi_ref(a_t)), and at the last token the answer's score on top, cut
    to [-limit, limit] (InstructGPT, equation 2, token by token; DeepSpeed-Chat, compute_rewards).

    `scores`: (answers); `divergence`: log pi - log pi_ref.
    """
    rewards = -kl * divergence * mask
    last = mask.cumsum(1).argmax(1)  # the first place where the count is whole
    cut = scores if limit is None else scores.clamp(-limit, limit)
    rewards[torch.arange(len(rewards)), last] += cut
    return rewards


def advantages_of(
    values: torch.Tensor, rewards: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages A and returns A + V (GAE, equation 16, as a recursion from the end; PPO, equations
    11, 12): delta_t = r_t + gamma V_(t+1) - V_t and A_t = delta_t + gamma lam A_(t+1), where both are 0 after
    the last token, also where an answer was cut there.

    `values`: V_t, what the critic expects before token t is drawn.
    """
    values, rewards = values * mask, rewards * mask
    following = torch.zeros_like(values[:, 0])
    advantage = torch.zeros_like(following)
    steps = []
    for step in reversed(range(values.shape[1])):
        delta = rewards[:, step] + gamma * following - values[:, step]
        advantage = delta + gamma * lam * advantage
        following = values[:, step]
        steps.append(advantage)
    advantages = torch.stack(steps[::-1], 1) * mask
    return advantages, advantages + values


def policy_loss(
    log_probs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return -min(r A, clamp(r, 1 - clip, 1 + clip) A) with r = pi / pi_old, summed over tokens (PPO,
    equation 7), and for how many tokens the clamped one was less: they give no gradient."""
    ratio = ((log_probs - old) * mask).exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)
    return (torch.maximum(plain, clipped) * mask).sum(), ((clipped > plain) * mask).sum()


def value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Return max((V - R)^2, (clamp(V, V_old - clip, V_old + clip) - R)^2) / 2, summed over tokens
    (DeepSpeed-Chat, critic_loss_fn)."""
    near = old + (values - old).clamp(-clip, clip)
    return 0.5 * (torch.maximum((values - returns) ** 2, (near - returns) ** 2) * mask).sum()
