"""Supervised fine-tuning: a decoder learns the answers to prompts."""
