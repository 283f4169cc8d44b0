"""Judging what DeepSpeed compiles its operators with at first use. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.checks._judging import About, each, engine, version_key
from muster.checks.base import Answers, Check, Context, Finding

CHECKS = (
    Check(
        "versions.compiler",
        "A C++ compiler and ninja, where DeepSpeed compiles operators (engine.offload, engine.config).",
        "Without them the first step fails while it builds CPU Adam, with a long traceback.",
    ),
    Check(
        "versions.nvcc",
        "The CUDA compiler there, of the major version that torch was built for.",
        "DeepSpeed refuses to build operators with a CUDA of another major version.",
    ),
)


def judge_toolchain(answers: Answers, context: Context) -> list[Finding]:
    """Both questions; not applicable to recipes that compile nothing."""
    section = engine(context)
    builds = section.get("name") == "deepspeed" and (
        section.get("offload") not in (None, "none") or bool(section.get("config"))
    )
    return [
        *each("versions.compiler", answers, lambda at, a: _compiler(at, a, builds)),
        *each("versions.nvcc", answers, lambda at, a: _nvcc(at, a, builds)),
    ]


def _compiler(about: About, answer: Mapping[str, Any], builds: bool) -> Finding:
    tools = answer.get("tools") or {}
    missing = [name for name, key in (("a C++ compiler", "c++"), ("ninja", "ninja")) if not tools.get(key)]
    if not builds:
        return about.not_applicable("this recipe compiles nothing")
    if missing:
        return about.warn(
            "DeepSpeed cannot compile its operators",
            f"no {' and no '.join(missing)}",
            "sudo apt-get install g++ ninja-build, or engine.offload=none",
        )
    return about.passed(f"{tools['c++']}, {tools['ninja']}")


def _nvcc(about: About, answer: Mapping[str, Any], builds: bool) -> Finding:
    cuda = answer.get("cuda")
    if not builds or not cuda or cuda == "none":
        return about.not_applicable("this recipe compiles nothing for CUDA")
    tools = answer.get("tools") or {}
    if not tools.get("nvcc"):
        return about.warn(
            "there is no CUDA compiler (nvcc)",
            f"torch is built for CUDA {cuda}",
            "install the CUDA toolkit of that version and set env.CUDA_HOME=/usr/local/cuda",
        )
    version = tools.get("nvcc_version")
    if not version:
        return about.unknown("nvcc's version could not be read")
    evidence = f"nvcc {version} at {tools['nvcc']}, torch for CUDA {cuda}"
    if version_key(version)[:1] == version_key(cuda)[:1]:
        return about.passed(evidence)  # a minor difference is accepted
    return about.fail(
        "nvcc and torch have different major CUDA versions",
        evidence,
        "env.CUDA_HOME=/usr/local/cuda-VERSION of torch's major version",
    )
