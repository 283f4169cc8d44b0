"""Prompts and answers, as files have them and as tokens: what the workloads sft, reward, dpo, grpo, rloo and
ppo share. rows.py and spec.py need no torch."""
