"""Where a stack stands, by its frames: patterns of modules and functions, in the order in which they decide.

Patterns see a frame as ``function (file)``: the bare function name (``Tensor.backward`` is ``backward``) and the file without its line,
relative to where Python found it (``torch/utils/data/dataloader.py``); native frames carry a library or C file.
Function and module names of the user's own frames are hints only, and the reason says so.
Names from PyTorch 1.8 to 2.13, CPython 3.8 to 3.14, NCCL 2.18 to 2.30, gloo, DeepSpeed, Megatron, Horovod.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One kind of place: a pattern on a frame; ``depth`` is how many innermost frames may hold it."""

    name: str
    pattern: re.Pattern[str]
    depth: int


def _place(name: str, pattern: str, depth: int = 12) -> Place:
    return Place(name, re.compile(pattern), depth)


#: Innermost frames looked at for a communication call.
COMMUNICATION_DEPTH = 24
_COMM_FILE = r"\((?:torch/distributed/[^/]{1,40}\.py|torch/distributed/nn/.{1,40}|distributed_c10d\.py|deepspeed/comm/.{1,40}|horovod/.{1,60}|mpi4py/.{1,60}|torchcomms/.{1,60})\)"
#: Calls of Python that wait for other ranks; the group is the operation.
COLLECTIVES = re.compile(
    rf"^(all_reduce\w*|allreduce\w*|all_gather\w*|allgather\w*|reduce_scatter\w*|broadcast\w*|all_to_all\w*|alltoall\w*|barrier|monitored_barrier|reduce|gather\w*|scatter\w*|_all_gather_base|_reduce_scatter_base|_broadcast_coalesced|new_group|new_subgroups\w*|split_group|wait_tensor) {_COMM_FILE}"
    r"|^(_sync_buffers|_distributed_broadcast_coalesced|_verify_param_shape_across_processes|_sync_module_states|_sync_params_and_buffers) \(torch/(?:nn/parallel/distributed|distributed/utils)\.py\)"
)
P2P = re.compile(
    rf"^(send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list|_recv_object|_send_object) {_COMM_FILE}"
    # Schedules of torch.distributed.pipelining wait for batches here (2.15); the wait itself leaves no frame.
    r"|^(_wait_batch_p2p|_wait_and_release_fwd_send) \(torch/distributed/pipelining/schedules\.py\)"
    r"|^(_communicate|_batched_p2p_ops|_p2p_ops|send_forward\w*|send_backward\w*|recv_forward\w*|recv_backward\w*) \((?:.*/)?p2p_communication\.py\)"
)
#: Native calls that wait for other ranks, with the operation in the group where the name tells it.
NATIVE_COLLECTIVES = re.compile(
    r"^(?:p?nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AlltoAll|AllToAll|Gather|Scatter|GroupEnd|GroupEndInternal)"
    r"|gloo::(allreduce|allgather|allgatherv|reduce_scatter|broadcast|reduce|alltoall|alltoallv|barrier|gather|gatherv|scatter)"
    r"|c10d::(?:Process)?(?:Group|Backend)\w*::(allreduce|allgather|reduce_scatter|broadcast|reduce|alltoall|alltoall_base|barrier|monitoredBarrier|gather|scatter)"
    r"|P?MPI_(Allreduce|Allgather|Reduce_scatter|Bcast|Reduce|Alltoall|Barrier|Gather|Scatter)"
    r"|c10d::Work::wait|c10d::ProcessGroup\w*::\w*Work\w*::(?:wait|synchronize\w*)|ncclCommGetAsyncError)\b"
)
NATIVE_P2P = re.compile(
    r"^(?:p?nccl(Send|Recv)|gloo::\w*::(?:send|recv)|c10d::ProcessGroup\w*::(send|recv|recvAnysource)|P?MPI_(Send|Recv|Sendrecv)"
    r"|c10d::ProcessGroup\w*::(Send|Recv)Work::wait)\b"
)
#: Names of native calls as torch.distributed writes them.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "bcast": "broadcast",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoall_base": "all_to_all",
    "monitoredbarrier": "monitored_barrier",
    "gatherv": "gather",
    "recvanysource": "recv",
}

#: Decide before a communication call does: the call underneath is over or not begun.
INTERRUPTIONS: tuple[Place, ...] = (
    _place("gil", r"^(?:take_gil|PyEval_RestoreThread|PyEval_AcquireThread|PyGILState_Ensure|_PyThreadState_Attach|drop_gil)\b", 10),
    _place("gc", r"^(?:Garbage-collecting|gc_collect\w*|_PyGC_\w+|PyGC_Collect|deduce_unreachable|subtract_refs) \(", 4),
    _place("import", r"\(<frozen importlib|^(?:_find_and_load\w*|import_find_and_load) \(", 4),
)
#: Decide by themselves, in this order, each within its depth.
PLACES: tuple[Place, ...] = (
    _place(
        # The main thread is done: it waits for other threads, for its child processes, or for its launcher to fetch what its function
        # returned.
        "ended",
        r"^_shutdown \(threading\.py|^_exit_function \(multiprocessing/util\.py|^_wrap \(torch/distributed/elastic/multiprocessing/api\.py",
        4,
    ),
    _place(
        "data-loader",
        r"\((?:torch/utils/data/|torchdata/|webdataset/|datasets/|litdata/|ffcv/|nvidia/dali/|streaming/base/|grain/|petastorm/|transformers/tokenization_|tokenizers/|megatron/core/datasets/)"
        r"|^(?:_try_get_data|_next_data|_next_index) \(",
        16,
    ),
    _place(
        "checkpoint",
        r"\((?:torch/serialization\.py|torch/distributed/checkpoint/|safetensors/|deepspeed/runtime/checkpoint_engine/|megatron/core/dist_checkpointing/|tensorstore/)"
        r"|^fsync\b",
    ),
    _place(
        "compile",
        r"\(torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_\w+|guards|variables/)|\(torch/_inductor/(?:compile_fx|graph|scheduler|async_compile|codegen/|select_algorithm|fx_passes/|lowering)"
        r"|\(triton/(?:compiler/|runtime/(?:autotuner|build))|\(torch/(?:utils/cpp_extension|_inductor/compile_worker)|\(torch/_functorch/_aot_autograd/(?:collect_metadata|traced_function|functional_utils)",
        10,
    ),
    _place(
        "rendezvous",
        r"^(?:init_process_group|_store_based_barrier|_new_process_group_helper|_rendezvous_helper|rendezvous|\w*_rendezvous_handler|_create_c10d_store|init_device_mesh) \((?:torch/distributed/|distributed_c10d)|^p?ncclCommInit\w*|^c10d::(?:TCPStore|PrefixStore)::(?:wait|get|doWait|doGet)\b",
    ),
    _place(
        "cuda-sync",
        r"^(?:synchronize|wait_stream|wait_event|wait|item|cpu|tolist|_lazy_init|empty_cache|mem_get_info) \(torch/(?:cuda/|_tensor\.py)"
        r"|^(?:cudaStreamSynchronize|cudaEventSynchronize|cudaDeviceSynchronize|cudaMemcpy\w*|cudaLaunchKernel\w*|cudaMalloc\w*|cudaFree\w*|cuStreamSynchronize|cuEventSynchronize|cuCtxSynchronize|cuMemcpy\w*|cuLaunchKernel\w*|hipStreamSynchronize|hipDeviceSynchronize|at::native::_local_scalar_dense_cuda)",
        10,
    ),
    _place("backward", r"^(?:_engine_run_backward|backward|grad) \(torch/(?:autograd/|_tensor\.py)|^torch::autograd::\w*Engine::", 8),
)
#: Waits that say little by themselves: asked last, after the names of the user's functions.
WAITS: tuple[Place, ...] = (
    _place(
        "lock",
        r"^(?:acquire|wait|wait_for|__enter__|get|put|join|_wait_for_tstate_lock|_recv|recv|recv_bytes|_recv_bytes|poll|result|as_completed|select|communicate|_wait|_try_wait|run_forever|run_until_complete|_run_once) "
        r"\((?:threading|queue|multiprocessing/|concurrent/|selectors|subprocess|asyncio/|filelock|fasteners/|torch/utils/file_baton|torch/multiprocessing/)"
        r"|\(torch/utils/file_baton\.py|\(filelock/"
        r"|^(?:PyThread_acquire_lock\w*|lock_PyThread_acquire_lock|acquire_timed|_?_?(?:GI_)?_?_?lll_lock_wait|_{0,4}(?:GI_)?_{0,4}pthread_mutex_lock\w*)\b",
        6,
    ),
    _place(
        "file-io",
        r"^\w+ \((?:gzip|bz2|lzma|shutil|zipfile|tarfile|zipfile/|_?io|_pyio|os|pathlib|pathlib/|glob|genericpath|posixpath|tempfile|mmap|fsspec/|s3fs/|gcsfs/|adlfs/|smart_open/|botocore/|boto3/|s3transfer/|urllib3/|urllib/|requests/|http/client|ssl|socket|aiohttp/|google/cloud/|huggingface_hub/|pyarrow/|h5py/|lmdb|zarr/)[^)]*\)"
        r"|^(?:os_(?:stat|open|listdir|scandir|replace|mkdir|unlink|fsync)\w*|_io_\w+|_Py_(?:read|write|open)\w*|fdatasync|_{0,4}(?:GI_)?_{0,4}(?:libc_)?(?:read|pread64|pwrite64|open64|fsync|openat))(?: |$)",
        6,
    ),
    _place("sleep", r"^(?:time_sleep|pysleep|sleep|_{0,4}(?:GI_)?_{0,4}(?:clock_)?nanosleep\w*)\b", 6),
)
_DATA = (
    r"(?:^|_)(?:load|next|get|fetch|read|prepare|build|make)_(?:micro_?|mini_?|train_|training_|eval_|new_|the_)?(?:batch(?:es)?|samples?|shards?|examples?|items?|images?|videos?|audio|tokens|corpus)(?:_|$)"
    r"|(?:^|_)(?:load|read|fetch|stream)_data(?:set)?(?:_|$)|^(?:load|read)_(?:data|input)s?$"
    r"|data_?loader|data_?iter|(?:^|_)prefetch|tokeni[sz]|(?:^|_)collate|(?:^|_)decode_(?:image|video|sample|audio|jpeg)|pre_?process|(?:^|_)augment|(?:^|_)shuffle_?buffer|pack_sequences|^__getitem__$|^__next__$"
)
#: Words in the bare names of user functions that hint at a place.
HINTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("data-loader", re.compile(_DATA, re.IGNORECASE)),
    (
        # A bare ``checkpoint`` is activation checkpointing: compute.
        "checkpoint",
        re.compile(
            r"(?:^|_)(?:save|load|write|store|restore|resume|dump|make|do|create|upload|put|push|persist|export|commit|async|finalize|flush|sync)_?(?:\w*_)?(?:checkpoints?|ckpts?)(?:_|$)"
            r"|(?:checkpoint|ckpt)_(?:save|load|write|restore|io|and|step|callback)|(?:^|_)save_(?:model|state|weights|snapshot|optimizer)|(?:^|_)(?:take_)?snapshot(?:_|$)",
            re.IGNORECASE,
        ),
    ),
    ("gil", re.compile(r"(?:^|_)gil(?:_|$)", re.IGNORECASE)),
    ("gc", re.compile(r"(?:^|_)(?:gc_collect|garbage|collect_garbage|run_gc)(?:_|$)", re.IGNORECASE)),
    ("lock", re.compile(r"(?:^|_)(?:lock|locked|mutex|semaphore|acquire|acquire_lock|wait_for_lock|hold_lock)(?:_|$)", re.IGNORECASE)),
    ("evaluation", re.compile(r"(?:^|_)(?:evaluate|eval|validate|validation|evaluation)(?:_|$)", re.IGNORECASE)),
)
#: Classes of the user's functions, as Python 3.11 and later name them (``Loader.read``), that hint at data loading; what loads models or
#: checkpoints bears a word of its own before it.
HINT_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "data-loader",
        re.compile(
            r"(?:^|\.)_{0,2}(?:(?:\w*(?:Data|Batch|Sample|Token|Text|Image|Video|Audio|Shard|Corpus|Train|Input|Record|Prefetch))?Loader"
            r"|\w*Dataset|\w*(?:Tokenizer|Collator|Prefetcher)|Data(?:Module|Pipe|Pipeline)"
            r"|\w*(?:Data|Batch|Sample|Shard|Record|Corpus)(?:Reader|Source|Stream|Iterator))\.\w+$"
        ),
    ),
)
#: Names of the user's modules that hint at data loading.
HINT_FILES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "data-loader",
        re.compile(
            r"(?:^|/)(?:\w*_?datasets?|\w*data_?loaders?|\w*data_?pipeline|\w*tokeni[sz](?:er|ers|ation)|collators?|input_pipeline)(?:\.py|/)"
        ),
    ),
)
#: Processes beside a rank's own, by a frame of their main thread.
ROLES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("data-worker", re.compile(r"^_worker_loop \(torch/utils/data/_utils/worker\.py")),
    (
        "launcher",
        re.compile(
            r"^(?:_monitor_workers|_invoke_run|launch_agent|_assign_worker_ranks|_rendezvous) \(torch/distributed/(?:elastic|launcher)/|\(torch/distributed/(?:run|launch)\.py\)"
        ),
    ),
    ("compile-worker", re.compile(r"\(torch/_inductor/compile_worker/")),
    (
        "helper",
        re.compile(
            r"\(multiprocessing/(?:resource_tracker|forkserver|managers)\.py\)|\(torch/multiprocessing/_atfork|\(wandb/sdk/(?:internal|service)/"
        ),
    ),
)
_STDLIB = (
    "abc argparse ast asyncio base64 bisect builtins bz2 cProfile codecs collections concurrent configparser contextlib contextvars copy copyreg csv ctypes "
    "dataclasses datetime decimal difflib dis email encodings enum fileinput fnmatch fractions ftplib functools gc genericpath getpass gettext glob gzip hashlib heapq hmac "
    "html http imaplib importlib inspect io ipaddress itertools json linecache locale logging lzma mimetypes mmap multiprocessing netrc ntpath numbers opcode "
    "operator os pathlib pdb pickle pickletools pkgutil platform posixpath pprint profile pstats queue random re reprlib runpy sched secrets select "
    "selectors shelve shlex shutil signal site smtplib socket socketserver sqlite3 ssl stat statistics string struct subprocess symtable sysconfig tarfile "
    "tempfile textwrap threading timeit token tokenize trace traceback tracemalloc types typing unittest urllib uuid warnings wave weakref xml xmlrpc "
    "zipfile zipimport zlib zoneinfo _bootstrap _collections_abc _compression _pyio _strptime _weakrefset _threading_local"
)
#: Modules of Python itself that stand in stacks: not the user's code. typing_extensions, one file as these are, has newer parts of
#: ``typing`` for older
#: Pythons; its wrapper stands between the program and calls of torch 2.13 that are deprecated (all_gather_into_tensor).
STDLIB = frozenset(_STDLIB.split()) | {"typing_extensions"}
_LIBRARIES = (
    "torch torchvision torchaudio torchdata torchtext torchcomms triton functorch numpy scipy pandas pyarrow PIL cv2 sklearn tqdm wandb mlflow tensorboard "
    "datasets tokenizers peft safetensors huggingface_hub apex transformer_engine flash_attn xformers "
    "litdata webdataset horovod ray mpi4py fsspec s3fs gcsfs botocore boto3 s3transfer requests "
    "urllib3 aiohttp grpc google zmq psutil click typer hydra omegaconf absl jax flax einops numba bitsandbytes nvidia ffcv lmdb h5py zarr "
    "tensorstore filelock smart_open sentencepiece rich pydantic IPython ipykernel debugpy py_spy uvloop cloudpickle dill joblib"
)
#: Libraries that stand in stacks of training jobs. Frameworks that hold the training loop (DeepSpeed, Megatron, Lightning) are not among
#: them:
#: their frames tell where in the step a rank is, and many run them as forks.
LIBRARIES = frozenset(_LIBRARIES.split())
