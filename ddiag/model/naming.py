"""What names in a trace mean: communication, kernel class, collective, runtime call, copy, element size.

Pure functions on one name; a trace has few unique names, so callers apply them to those only.
"""

from __future__ import annotations

import re

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(anonymous\)::|<unnamed>::")
_RETURN_TYPE = re.compile(r"^(?:std::enable_if<.*?>::type|__launch_bounds__\(.*?\)|static|void|inline)\s+")
_MANGLED_PART = re.compile(r"(\d+)")

_COMMUNICATION = re.compile(
    r"""
    ^(?:nccl | rccl | msccl | hccl | hcom_ | xccl | oneccl | ccl_)     # vendor libraries
    | mscclpp | nvshmem | quickreduce | userbuffers                    # one-sided and user-buffer transports
    | (?:one|two)_?shot_?all_?reduce | multimem_(?:one_shot_)?all_     # symmetric memory
    | symmetric_memory:: | intra_node_comm::
    | (?:deep_ep)(?:::|\d+)(?:intranode|internode)                     # expert dispatch and combine
    | cross_device_reduce                                              # vLLM, SGLang, AITER
    | (?<!warp)(?<!warp_)(?<!block)(?<!block_)all_?reduce              # TensorRT-LLM, FlashInfer
    | all_?to_?all(?!_?(?:gather|offset)) | reduce_?scatter(?:_|k|$|:) | (?<![a-z])all_?gather(?:_|k|$|:)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NEVER_COMMUNICATION = re.compile(
    r"^triton_(?:poi|red|per|tem|mm|for|spl)|sync_?batch_?norm|copy_(?:in|out)|layout|permute|recat", re.IGNORECASE
)


def function_name(name: str) -> str:
    """The qualified function of a kernel name, short enough to show: no return type, template arguments, parameters."""
    if name.startswith("_Z"):
        return _demangled_head(name)
    bare = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name).strip())
    bare = _RETURN_TYPE.sub("", bare)
    for at, letter in enumerate(bare):
        if letter in "<(" and at > 0:
            return bare[:at].rstrip()
    return bare


def _demangled_head(name: str) -> str:
    """The leading identifiers of an Itanium-mangled name, joined by ``::``."""
    at = 3 if name.startswith("_ZN") else 2
    parts = []
    while (match := _MANGLED_PART.match(name, at)) is not None:
        start = match.end()
        at = start + int(match.group(1))
        parts.append(name[start:at])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__")) or name


def is_communication(kernel_name: str) -> bool:
    """True when a device kernel moves data between ranks.

    Fused kernels (all-reduce + norm) count; kernels that only prepare or unpack buffers do not.
    """
    head = function_name(kernel_name)
    return _COMMUNICATION.search(head) is not None and _NEVER_COMMUNICATION.search(head) is None


_HEAD, _FULL = "head", "full"
_CLASSES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kernel_class, scope, re.compile(pattern))
    for kernel_class, scope, pattern in (
        ("elementwise", _HEAD, r"(?i)rotary|(?:^|[_:])rope(?:_|$)"),
        ("embedding", _HEAD, r"(?i)(?:split|dense|ssd)_embedding|embedding_?bag|embedding_(?:back|for)ward|pooled_emb"),
        (
            "optimizer",
            _FULL,
            r"Fused(?:Adam|Sgd|Adagrad|Lamb)|(?:^|[^a-zA-Z])(?:Dist)?(?:Adam|SGD|Adagrad|LAMB|LAMBStage\d|Lion|NovoGrad|Lamb)"
            r"(?:Capturable|Master|WithParamRemainders)*(?:Functor|_|Kernel)|kOptimizer|kPreconditionOptimizer",
        ),
        (
            "optimizer",
            _HEAD,
            r"(?i)(?:^|[_:])(?:fused_)?(?:adam|adamw|lamb|lion|adagrad|sgd|adafactor|muon)_(?:\w*_)?kernel",
        ),
        ("reduction", _FULL, r"multi_tensor_apply_kernel.*(?:L2Norm|LpNorm|MaxNorm|LpMax)"),
        ("elementwise", _HEAD, r"multi_tensor_apply_kernel"),
        ("conv", _HEAD, r"^triton_tem_\w*convolution"),
        ("attention", _HEAD, r"^triton_tem_\w*attention"),
        ("gemm", _HEAD, r"^triton_(?:tem|mm)"),
        ("elementwise", _HEAD, r"^triton_(?:poi|for)"),
        ("reduction", _HEAD, r"^triton_(?:red|per|spl)"),
        ("copy", _HEAD, r"(?i)reshape_and_cache|store_?kv|copy_?blocks|copy_page|concat_and_cache"),
        (
            "attention",
            _FULL,
            r"(?i)flash_?(?:fwd|bwd|attn|attention|mla|infer::(?:Batch|Single)\w*(?:Prefill|Decode))|fmha"
            r"|(?:^|[_:])attn_(?:fwd|bwd)|(?:^|[_:])mha_(?:fwd|bwd|varlen|batch)|mla_(?:fwd|decode|prefill)|sdpa"
            r"|(?:paged|unified|sliding|sparse|multi_?head|mem_?eff)\w*attention|attention_?kernel|_attention_"
            r"|(?:Batch|Single)(?:Prefill|Decode)With|bwd_kernel_d(?:kdv|k_dv|q)\b",
        ),
        (
            "copy",
            _HEAD,
            r"(?i)CatArray|(?:^|[_:])(?:batched_)?transpose|transpose_kernel|nchwTo|nhwcTo|copyBuffer|fillBuffer"
            r"|copy_device_to_device|split_with_sizes_copy|chunk_cat|memcpy|memset|^Copy(?:Device|Host)|recat_copy"
            r"|copy_kernel|copy_(?:in|out)|pad_(?:kernel|forward)|tensor_?transform|index_copy_kernel",
        ),
        ("embedding", _HEAD, r"index_elementwise_kernel|scatter_gather_elementwise_kernel"),
        (
            "copy",
            _FULL,
            r"(?:elementwise\w*|elementwise_kernel\w*)<.*?(?:direct|bfloat16|float\w*|half|float8)_?\w*copy_kernel_cuda",
        ),
        ("copy", _FULL, r"elementwise\w*<.*?copy_device_to_device"),
        ("elementwise", _HEAD, r"elementwise|elemWise|unrolled_elem|distribution_nullary"),
        ("softmax", _HEAD, r"(?i)soft_?max"),
        (
            "norm",
            _FULL,
            r"(?i)(?:layer|rms|batch|group|instance)_?norm|(?:^|[_:])bn_(?:fw|bw|add)|RowwiseMoments|GammaBeta"
            r"|cuApplyLayerNorm|cuComputeGrad(?:Input|Gamma)|cuWelford|(?:^|[_:])ln_(?:fwd|bwd)|welford_kernel",
        ),
        (
            "reduction",
            _HEAD,
            r"dot_kernel|reduce_1Block|(?:^|::)reduce_kernel|DeviceReduce|(?i:(?:max|avg|average)\w*_?pool|pooling|_loss|NLLCriterion|cross_entropy)",
        ),
        ("elementwise", _HEAD, r"(?i)scalePackedTensor|SubTensorOp|op_?(?:generic_)?tensor|add_tensor_kernel"),
        (
            "conv",
            _FULL,
            r"(?i)cudnn|convolve|implicit_?gemm|winograd|[wd]grad_|fprop|^igemm_|im2col|col2im|fft2d|miopen.*conv"
            r"|miopenSp3|gcnAsmConv|(?:^|[_:])(?:naive_|grouped_|depthwise_)?conv\d?d?_|grouped_conv|conv_depthwise|bwd_weight|Im2d2Col",
        ),
        ("embedding", _HEAD, r"^fbgemm_gpu::(?!.*(?i:quant|fp8))"),
        (
            "gemm",
            _HEAD,
            r"(?i)(?<!fb)gemm|nvjet|Cijk_|mat_?mul|^bmm_|gemv|splitK|cublas|tensorop|xmma|cutlass|wvSplit|grouped_mm|marlin"
            r"|fused_moe|(?:^|[_:])mm_kernel|(?:^|[_:])scaled_mm|^scal_kernel|^epilogue::|^device_kernel",
        ),
        ("gemm", _FULL, r"^_Z.*(?i:gemm|cutlass)"),
        (
            "embedding",
            _HEAD,
            r"(?i)embedding|index_?select|(?:^|[_:])index(?:ing|Func)?_?|gather|scatter|bounds_check_indices|linearize_index"
            r"|permute_(?:2D|1D|indices|pooled)|offsets_range|masked_select|unique|compute_grad_weight",
        ),
        ("reduction", _HEAD, r"(?i)reduc|arg(?:max|min)|(?:^|[_:])(?:sum|mean|l2_?norm|norm)_|nll_loss"),
        (
            "elementwise",
            _HEAD,
            r"(?i)dropout|act_and_mul|activation|silu|gelu|swiglu|fill|clamp|quant|bias_add|arange|where|relu|sigmoid|tanh"
            r"|upsample|unscale|lerp|cast|(?:^|[_:])scale|rowwise_to_float",
        ),
    )
)


def kernel_class(kernel_name: str) -> str:
    """Class of a device kernel by its name.

    communication, gemm, conv, attention, norm, softmax, elementwise, reduction, optimizer, embedding (with indexing),
    copy (layout changes, casts, concatenation) or other. Helper kernels count with what they serve (split-K reductions
    are gemm, cuDNN offset kernels are conv).
    """
    if is_communication(kernel_name):
        return "communication"
    head = function_name(kernel_name)
    for found, scope, pattern in _CLASSES:
        if pattern.search(head if scope == _HEAD else kernel_name):
            return found
    return "other"


_SPAN = re.compile(
    r"^(?:nccl|gloo|mpi|ucc|xccl|hccl|ccl|oneccl|torch_ccl|c10d|_?c10d_functional|_?c10d_functional_autograd|symm_mem)::?",
    re.IGNORECASE,
)
_COLLECTIVE_WORDS: tuple[tuple[str, str], ...] = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("a2a", "all_to_all"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("send", "send"),
    ("recv", "recv"),
    ("receive", "recv"),
    ("barrier", "barrier"),
    ("crossdevicereduce", "all_reduce"),
    ("quickreduce", "all_reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("coalesced", "coalesced"),
)
_BARE_AFFIX = re.compile(r"base$|oop$|single$|coalesced$|intotensor$|tensor$|v$|list$|async$|anysource$|^monitored")


def collective_op(name: str) -> str | None:
    """Canonical collective of a kernel name, 'Collective name' value, communication span or record_param_comms.

    all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter, send, recv, send_recv,
    barrier, coalesced, or unknown (communication that does not say which); None when it is not communication.
    """
    if name == "record_param_comms":
        return "unknown"
    if is_communication(name):
        head = _squeeze(function_name(name))
        return "all_to_all" if "deepep" in head else _first_word(head) or "unknown"
    span = _SPAN.match(name)
    if span is not None:
        return _first_word(_squeeze(name[span.end() :]))
    return _bare_collective(_squeeze(name))


def _squeeze(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _first_word(squeezed: str) -> str | None:
    return next((op for word, op in _COLLECTIVE_WORDS if word in squeezed), None)


def _bare_collective(squeezed: str) -> str | None:
    """A value such as ``_allgather_base``: nothing but a collective word and known endings."""
    known = dict(_COLLECTIVE_WORDS)
    while squeezed not in known:
        shorter = _BARE_AFFIX.sub("", squeezed)
        if shorter == squeezed:
            return None
        squeezed = shorter
    return known[squeezed]


_LAUNCH_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("graph", r"^(?:cuda|cu|hip)GraphLaunch"),
        ("other", r"HostFunc|Graph"),
        ("launch", r"Launch\w*Kernel|KernelLaunch|LaunchCooperative|^runFunction|^aclrtLaunch"),
        ("copy", r"(?i:memcpy)|MemoryCopy"),
        ("memset", r"[Mm]emset|MemoryFill|USMFill"),
        ("event", r"StreamWaitEvent|waitOnEvent"),
        ("sync", r"(?i:synchronize)|^urEventWait$|^urQueueFinish"),
        ("event", r"Event"),
        ("alloc", r"Malloc|HostAlloc|MemAlloc|MemCreate|MemMap$|MemSetAccess|MemAddressReserve|USM\w*Alloc"),
        ("free", r"^(?:cuda|hip)(?:Host)?Free|MemFree|MemUnmap|MemRelease|MemAddressFree|USMFree"),
    )
)


def launch_kind(api_name: str) -> str:
    """Kind of a runtime or driver call: launch, graph, copy, memset, sync, alloc, free, event or other.

    sync blocks the host; event calls (record, query, stream wait) do not.
    """
    return next((kind for kind, pattern in _LAUNCH_KINDS if pattern.search(api_name)), "other")


_COPY_ENDS = re.compile(r"(?<![A-Za-z])(?:Memcpy\s*)?([HDAPMS])(?:to|2)([HDAPMS])(?![a-z])|memcpy([HD])to([HD])")
_COPY_WORDS = re.compile(r"(Host|Device)To(Host|Device)")
_SIDE = {"H": "h", "M": "h", "D": "d", "A": "d", "S": "d"}


def copy_direction(name: str) -> tuple[str, bool | None]:
    """Direction (h2d, d2h, d2d, p2p, h2h, memset, unknown) and whether the host side is page-locked, None if unsaid."""
    lowered = name.lower()
    if "memset" in lowered or "fillbuffer" in lowered or "memory fill" in lowered:
        return "memset", None
    words = _COPY_WORDS.search(name)
    if words is not None:
        return f"{words.group(1)[0].lower()}2{words.group(2)[0].lower()}", _pinned(lowered)
    ends = _COPY_ENDS.search(name)
    if ends is None:
        return "unknown", None
    source, target = ends.group(1) or ends.group(3), ends.group(2) or ends.group(4)
    if "P" in (source, target):
        return "p2p", None
    return f"{_SIDE[source]}2{_SIDE[target]}", _pinned(lowered)


def _pinned(lowered: str) -> bool | None:
    if "pageable" in lowered:
        return False
    return True if "pinned" in lowered else None


_ELEMENT_BYTES = {
    8: "double float64 long int64 uint64 complexfloat complex64 fp64 longint",
    4: "float float32 int int32 uint32 tf32 complexhalf fp32 qint32 unsignedint",
    2: "half float16 bfloat16 short int16 uint16 fp16 bf16",
    1: "byte char bool int8 uint8 float8e4m3fn float8e5m2 float8e4m3fnuz float8e5m2fnuz float8e8m0fnu fp8 qint8 quint8 "
    "signedchar unsignedchar float8 bits8",
    16: "complexdouble complex128",
}
_BYTES_OF = {name: size for size, names in _ELEMENT_BYTES.items() for name in names.split()}


def dtype_bytes(dtype: str) -> int | None:
    """Bytes per element of a type as traces spell it: ``BFloat16``, ``c10::Half``, ``Float8_e4m3fn``, ``long int`` …"""
    bare = dtype.rsplit("::", 1)[-1].rsplit(".", 1)[-1]
    squeezed = re.sub(r"[\s_<>]", "", bare.lower().removeprefix("nccl"))
    if squeezed.startswith("c10complex"):
        squeezed = "complex" + squeezed.removeprefix("c10complex")
    return _BYTES_OF.get(squeezed)
