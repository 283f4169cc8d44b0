"""Reads a request, writes its trace, or {"error": {what, where, hint}} with exit code 2 for what cannot work
and 1 for a model that cannot be traced."""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from muster.core.errors import JobError, MusterError, UsageError
from muster.core.trace import TraceRequest, to_json

CALM = {
    "CUDA_VISIBLE_DEVICES": "",  # no device is touched
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def main() -> int:
    """Read one request from standard input, and write one document to standard output."""
    gc.disable()  # searching all that is imported for garbage again and again costs a third of the time
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not disturb the document
    os.environ.update(CALM)
    try:
        document, code = _answer(_read(sys.stdin.read())), 0
    except MusterError as error:
        document, code = {"error": error.as_dict()}, error.exit_code
    json.dump(document, out)
    out.write("\n")
    out.flush()
    return code


def _read(text: str) -> TraceRequest:
    """Parse a request. Raises UsageError for what is none."""
    try:
        content = json.loads(text)
        if not isinstance(content["config"], dict):
            raise TypeError("config is a JSON object")
        return TraceRequest(**{**content, "samples": tuple(content.get("samples", (2, 4)))})
    except KeyError as error:
        raise UsageError(f"has no {error}", where="standard input") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"is no request: {error}", where="standard input") from None


def _answer(request: TraceRequest) -> dict[str, Any]:
    import transformers.modeling_utils  # noqa: F401  (slow, and no model goes without it)

    from muster.worker.tracing.tracing import cause_of, trace

    try:
        return to_json(trace(request))
    except MusterError:
        raise
    except Exception as error:
        # Whatever a third party's model does without data, it can still be trained.
        kind = request.config.get("model_type")
        raise JobError(f"{kind} cannot be traced: {cause_of(error)}") from None


if __name__ == "__main__":
    sys.exit(main())
