"""What DeepSpeed's ZeRO stages hold, with and without offload, for Adam. Pure.

Sources: DeepSpeed 0.19, deepspeed/runtime: engine.py (_configure_optimizer, allreduce_gradients),
fp16/unfused_optimizer.py, zero/stage_1_and_2.py, zero/stage3.py, zero/partition_parameters.py,
zero/parameter_offload.py, zero/partitioned_param_coordinator.py, swap_tensor; ops/adam/cpu_adam.py. Gradients
are added up in the model's precision (engine.py, get_data_types). The Trainer's fused AdamW works in place.
"""

from __future__ import annotations

from muster.planner.memory.parts import Parts, States, added, elements, largest, up
from muster.planner.spread import ModelSpread, Tensors, trained

REDUCED_AT_ONCE = 500_000_000  # elements: engine.py, MEMORY_OPT_ALLREDUCE_SIZE
TO_DISK = 2**20  # bytes of a tensor from which on it goes to a disk (swap_tensor/utils.py, MIN_AIO_BYTES)
NORM = 8  # bytes: gradients are converted to double, one tensor at a time (zero/utils.py, get_norm_dtype)


def zero(spread: ModelSpread, tensors: Tensors, rank: int | None = None) -> States:
    """Of one rank; None: of the one that holds most."""
    if spread.stage == 0:
        return _stage_0(spread, tensors)
    if spread.stage < 3:
        return _stages_1_2(spread, tensors, rank)
    return _stage_3(spread, tensors)


def _stage_0(spread: ModelSpread, tensors: Tensors) -> States:
    """Everything on every rank. In fp32 the optimizer is the bare one; in half precision an fp32 copy of each
    parameter, and of each gradient during the step (FP16_UnfusedOptimizer; FP16_Optimizer, with DeepSpeed's
    own Adam, flattens them as well). Gradients are flattened once more to be reduced, also on one rank.
    """
    e, own = spread.element, elements(trained(tensors))
    held = {"parameters": e * elements(tensors), "optimizer": 8 * own}
    gradients = {"gradients": e * own}
    step = dict(gradients)
    if e == 2:
        held["fp32 master"] = 4 * own
        step["fp32 gradients"] = (8 if spread.one_group else 4) * own
    flat = min(own, REDUCED_AT_ONCE + largest(trained(tensors)))
    after = {"gradient reduction": {**gradients, "buckets": e * flat}, "optimizer step": step}
    backward = {"gradients in flight": e * largest(trained(tensors))}
    return States(held, {}, {}, gradients, backward, after, whole=True)


# --- stages 1 and 2 --------------------------------------------------------------------------------------


def _stages_1_2(spread: ModelSpread, tensors: Tensors, rank: int | None) -> States:
    """Each optimizer group is one flat tensor, padded to twice the ranks, of which a rank owns one part: with
    an fp32 copy, also where the model is in fp32, and Adam's states.

    Stage 1 keeps all gradients until they are reduced; then, and in stage 2 at once, those of a part stay,
    whole where they cross its edge (copy_grads_in_partition). The whole reduce bucket is allocated with the
    first gradient (setup_buckets), and what is reduced is flattened once more where there are several ranks.
    The step flattens a part's gradients, and converts them to fp32.
    """
    e, n = spread.element, spread.ranks
    own = trained(tensors)
    groups = spread.optimizer_groups(tensors)
    parts = [up(elements(group), 2 * n) // n for group in groups]
    part, most = sum(parts), max(parts, default=0)
    frozen = elements(tensors) - elements(own)
    held = {"parameters": e * (n * part + frozen)}
    cut = list(zip(groups, parts, strict=True))
    kept = e * sum(_whole(group, size, rank) for group, size in cut)
    touched = spread.bucket if spread.device == "cuda" else min(spread.bucket, elements(own))
    used = min(spread.bucket, elements(own))
    piece = max((_piece(group, size, rank) for group, size in cut), default=0)
    flat = used if spread.stage == 2 and n > 1 else 0
    backward = {
        "buckets": spread.buckets * e * touched,
        "gradients in flight": e * (largest(own) + flat),
    }
    gradients = {"gradients": e * elements(own) if spread.stage == 1 else kept}
    stays = spread.stage == 1 and spread.accumulates  # the bucket, from the first micro-batch on
    passes = {"buckets": backward.pop("buckets")} if stays else {}
    if spread.moves_optimizer:
        # A part's gradients go straight to the host; one goes by way of these buffers, and is measured.
        held["transfer buffer"] = e * largest(own)
        backward["gradients in flight"] += NORM * piece
        host = _offloaded(spread, groups, parts, kept)
        at_once = spread.stage == 2
        return States(held, host, passes, {} if at_once else gradients, backward, whole=not at_once)
    held |= {"fp32 master": 4 * part, "optimizer": 8 * part}
    after = {
        "optimizer step": {"gradients": kept, "fp32 gradients": (6 if e == 2 else 4) * most},
        "gradient norm": {"gradients": kept, "gradients in flight": NORM * piece},
    }
    if spread.stage == 1:
        more = max(0, kept - e * used)
        bucket = {"buckets": spread.buckets * e * touched}
        after["gradient reduction"] = {**gradients, **bucket, "gradients of the part": more}
    elif spread.accumulates:
        backward["gradients in flight"] += kept  # a micro-batch's own, before they are added
    elif elements(own) <= spread.bucket:  # all wait in the bucket
        after["gradient reduction"] = {**backward, **gradients}
        gradients, backward = {}, {**backward, "gradients in flight": e * largest(own)}
    return States(held, {}, passes, gradients, backward, after, whole=spread.stage == 1)


def _offloaded(spread: ModelSpread, groups: list[Tensors], parts: list[int], kept: int) -> Parts:
    """Host memory of stages 1 and 2 with the optimizer offloaded. Adam's states are not pinned."""
    e, pinned = spread.element, spread.pinned
    host = {
        "fp32 master": sum(pinned(4 * size) for size in parts),
        "fp32 gradients": sum(pinned(4 * size) for size in parts),
        "optimizer": 8 * sum(parts),
        "transfer buffer": sum(pinned(e * size) for size in parts),
    }
    host["transfer buffer"] += pinned(e * max(largest(group) for group in groups)) if groups else 0
    if spread.accumulates:
        host["accumulated gradients"] = pinned(kept)
    return host


def _piece(group: Tensors, size: int, rank: int | None) -> int:
    """Elements of the largest piece of a tensor that a rank's part has; None: that any part may have."""
    if rank is None:
        return min(largest(group), size)
    found, at, begin = 0, 0, rank * size
    for each in group:
        found = max(found, min(at + each.numel, begin + size) - max(at, begin))
        at += each.numel
    return found


def _whole(group: Tensors, size: int, rank: int | None) -> int:
    """Elements of the tensors of which a rank's part has some, counted whole; None: of the rank with most.

    Source: zero/stage_1_and_2.py, get_partition_info.
    """
    sums: dict[int, int] = {}
    inside = at = 0
    for each in group:
        first, last = at // size, (at + each.numel - 1) // size
        at += each.numel
        if rank is not None:
            inside += each.numel if first <= rank <= last else 0
            continue
        for edge in {first, last}:
            sums[edge] = sums.get(edge, 0) + each.numel
        if last - first > 1:  # parts that have nothing else
            inside = max(inside, each.numel)
    return max(inside, max(sums.values(), default=0))


# --- stage 3 ---------------------------------------------------------------------------------------------


def _stage_3(spread: ModelSpread, tensors: Tensors) -> States:
    """Each tensor is padded to the ranks and cut. Trained shards lie in one flat tensor, with one of their
    gradients, an fp32 copy, also where the model is in fp32, and Adam's states; one reduce bucket stays.

    Parameters of at most `persistence` elements are gathered again after each step and stay so. What is
    gathered in a pass: `_gathered`. In flight: the largest gradient, which does not fit the bucket as a
    rule, and the copy that is reduced. The step works on sub-groups, after all parameters were released.
    Parameters and the optimizer are offloaded each by itself (_configure_offloading).
    """
    e, n = spread.element, spread.ranks
    own = trained(tensors)
    groups = [_shards(group, n) for group in spread.optimizer_groups(tensors)]
    part = sum(sum(group) for group in groups)
    all_ = sum(_shards(tensors, n))
    biggest = largest(own)
    bucket = spread.bucket if spread.device == "cuda" else min(spread.bucket, elements(own))
    held = {"buckets": e * bucket}
    if not spread.moves_parameters:
        held["parameters"] = e * all_
    travels = n > 1 or spread.moves_parameters
    if travels:
        small = (up(each.numel, n) for each in tensors if each.numel <= spread.persistence)
        held["persistent parameters"] = e * sum(small)
    passes = {"gathered parameters": e * _gathered(spread, tensors) if travels else 0}
    copied = max(min(spread.bucket, elements(own)), up(biggest, n) if biggest % n else 0)
    backward = {"gradients in flight": e * (biggest + copied)}
    subs = [size for group in groups for size in _sub_groups(group, spread.sub_group)]
    host = _parameters_on_host(spread, tensors, groups, subs) if spread.moves_parameters else {}
    if not spread.moves_optimizer:
        held |= {"fp32 master": 4 * part, "optimizer": 8 * part, "gradients": e * part}
        step = {"fp32 gradients": (6 if e == 2 else 4) * max(subs, default=0)}
        norm = {"gradients in flight": NORM * -(-biggest // n)}
        return States(held, host, passes, {}, backward, {"optimizer step": step, "gradient norm": norm})
    backward["gradients in flight"] += (e + 4 + NORM) * -(-biggest // n)  # a shard's, on its way to the host
    if spread.disk.optimizer:  # all of a bucket's wait in fp32 (partition_grads)
        backward["gradients in flight"] += 4 * -(-min(spread.bucket, elements(own)) // n)
    host = added(host, _optimizer_on_host(spread, part, subs))
    return States(held, host, passes, {}, backward)


def _optimizer_on_host(spread: ModelSpread, part: int, subs: list[int]) -> Parts:
    """Adam's states, their fp32 copies and gradients; a rank's gradients as they are reduced.

    On a disk: of sub-groups that are large enough, whose states come by way of buffers of the largest one's
    size; the first step makes its moments beside them (SwapBufferManager, swap_in_optimizer_state).
    """
    gone = spread.disk.optimizer
    here = [size for size in subs if not gone or 4 * size < TO_DISK]
    host = {
        "fp32 master": 4 * sum(here),
        "optimizer": 8 * sum(here),
        "fp32 gradients": sum(spread.pinned(4 * size) for size in here),
        "gradients": spread.pinned(spread.element * part),
    }
    if gone:
        host["disk buffers"] = (4 * spread.disk.state_buffers + 8) * max(subs, default=0)
    return host


def _parameters_on_host(
    spread: ModelSpread, tensors: Tensors, groups: list[list[int]], subs: list[int]
) -> Parts:
    """Trained shards in one flat block a group; frozen ones as they are. Each had a block of its own while
    the model was cut, which torch's allocator of pinned memory keeps (_partition_param).

    On a disk: what is over `kept`, and frozen shards that are large enough; they come by way of buffers, and
    go by way of one for all of the largest sub-group (_create_param_groups_fp16_flat_cpu_memory,
    reserve_partitioned_swap_space).
    """
    e, n, gone = spread.element, spread.ranks, spread.disk.parameters
    left = spread.disk.kept if gone else sum(sum(group) for group in groups)
    flat = buffers = 0
    for group in groups:
        size = min(sum(group), left)
        flat, left = flat + spread.pinned(e * size), left - size
        if size < sum(group):
            buffers = e * n * max(subs)

    def stays(size: int) -> bool:
        return not gone or e * size < TO_DISK

    frozen = _shards(tuple(each for each in tensors if not each.trained), n)
    parts = {"parameters": flat + sum(spread.pinned(e * size) for size in frozen if stays(size))}
    if spread.device == "cuda" and spread.pins:
        large = tuple(each for each in trained(tensors) if each.numel > spread.persistence)
        shards = [size for size in _shards(large, n) if stays(size)]
        parts["pinned blocks kept"] = sum(spread.pinned(e * size) for size in shards)
    if gone:
        parts["disk buffers"] = e * spread.disk.value_buffers + buffers
    return parts


def _shards(tensors: Tensors, ranks: int) -> list[int]:
    """Elements of each tensor's shard. Source: zero/partition_parameters.py, _aligned_size."""
    return [-(-each.numel // ranks) for each in tensors]


def _sub_groups(shards: list[int], size: int) -> list[int]:
    """Elements of a group's sub-groups. Source: zero/stage3.py, _create_fp16_sub_groups."""
    if size >= sum(shards):
        return [sum(shards)] if shards else []
    made, open_ = [], 0
    for index, each in enumerate(shards):
        open_ += each
        if open_ >= size or index == len(shards) - 1:
            made.append(open_)
            open_ = 0
    return made


def _gathered(spread: ModelSpread, tensors: Tensors) -> int:
    """Elements of whole parameters at the end of a forward pass, at most.

    Each module that is reached fetches `prefetch` elements more, norms and containers as well, so that
    fetching runs ahead until `live` elements are there (_fetch_sub_module_impl). Without that: a module's
    parameters are not released where they come again within `reuse` elements, forward and back, so those of
    the last half of that (__params_to_release). Besides the module that computes, and what is on its way,
    which lies in a flat buffer as well (AllGatherCoalescedHandle).
    """
    modules: dict[str, int] = {}
    for each in tensors:
        if each.numel > spread.persistence:
            name = each.name.rpartition(".")[0]
            modules[name] = modules.get(name, 0) + each.numel
    all_ = sum(modules.values())
    most = max(spread.reuse // 2, spread.live if spread.prefetch else 0)
    return min(all_, most + max(modules.values(), default=0)) + min(all_, spread.prefetch)
