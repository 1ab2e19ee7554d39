"""Where a stack stands, by its frames: patterns of modules and functions, in the order in which they decide.

Function names of the user's own frames are hints only, and the reason says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One kind of place: a pattern on a frame ``func (file:line)``; ``depth`` is how many innermost frames may hold it."""

    name: str
    pattern: re.Pattern[str]
    depth: int


def _place(name: str, pattern: str, depth: int = 12) -> Place:
    return Place(name, re.compile(pattern, re.IGNORECASE), depth)


COLLECTIVES = re.compile(
    r"^(all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|all_to_all\w*|barrier|reduce|gather\w*|scatter\w*|monitored_barrier|_all_gather_base|_reduce_scatter_base|new_group|split_group) \(.*(torch/distributed|distributed_c10d)",
)
P2P = re.compile(
    r"^(send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list|_recv_object|_send_object) \(.*(torch/distributed|distributed_c10d)"
)

#: Tried from the innermost frame outward; the first place that matches within its depth decides.
PLACES: tuple[Place, ...] = (
    _place("data-loader", r"\((torch/utils/data/|.*/dataloader\.py)|^(_try_get_data|_next_data|_get_data|_next_index|fetch) \("),
    _place("gil", r"^take_gil|PyEval_RestoreThread|PyGILState_Ensure|^(hold|lock)_?(the_)?gil\b", 8),
    _place(
        "checkpoint",
        r"^(save|load|_save|_load|save_checkpoint|load_checkpoint|save_state_dict|load_state_dict|async_save|fsync|_write_item) \((torch/(serialization|distributed/checkpoint)|.*(safetensors|checkpoint))",
        8,
    ),
    _place("gc", r"^(gc_collect|collect|_PyGC|gc_collect_main)\b.*|Garbage-collecting", 3),
    _place("compile", r"torch/_(inductor|dynamo|functorch)/|/triton/(compiler|runtime)/", 6),
    _place("import", r"<frozen importlib|^_find_and_load|^exec_module", 4),
    _place(
        "cuda-sync",
        r"^(synchronize|item|cpu|tolist|wait_stream|current_stream) \(torch/|cudaStreamSynchronize|cudaEventSynchronize|cuStreamSynchronize|cudaDeviceSynchronize|cuCtxSynchronize",
        6,
    ),
    _place("backward", r"^(_engine_run_backward|backward) \(torch/(autograd|_tensor)", 4),
    _place(
        "lock",
        r"^(acquire|wait|wait_for|__enter__|get|put|join|_wait_for_tstate_lock) \((threading|queue|multiprocessing/|concurrent/).*|futex_wait|sem_wait|pthread_mutex_lock|pthread_cond",
        3,
    ),
    _place(
        "file-io",
        r"^(read|readinto|write|open|readall|pread|recv_into|recv|readline) \((.*(gzip|shutil|_io|pathlib|fsspec|s3fs|botocore|urllib3|http/client|ssl|socket)\.py)",
        4,
    ),
)
#: Words in the names of user functions that hint at a place.
HINTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "data-loader",
        re.compile(
            r"^(?:\w*\.)*(\w*(load_batch|next_batch|get_batch|fetch_batch|dataloader|data_loader|prefetch|tokeniz|collate|read_shard|load_shard|decode_(image|video|sample)|preprocess|augment|load_data|read_sample|get_sample|next_sample)\w*|__next__|__getitem__) \(",
            re.IGNORECASE,
        ),
    ),
    ("checkpoint", re.compile(r"^(?:\w*\.)*\w*(checkpoint|save_model|save_state|snapshot)\w* \(", re.IGNORECASE)),
    ("gil", re.compile(r"^(?:\w*\.)*\w*(gil|busy_loop|spin)\w* \(", re.IGNORECASE)),
    ("lock", re.compile(r"^(?:\w*\.)*\w*(lock|acquire|mutex)\w* \(", re.IGNORECASE)),
    ("evaluation", re.compile(r"^(?:\w*\.)*\w*(evaluate|eval_|validate|validation)\w* \(", re.IGNORECASE)),
)
#: Frames of libraries: not the user's code.
LIBRARY = re.compile(
    r"\((torch/|.*/torch/|.*site-packages/|<frozen|threading\.py|multiprocessing/|concurrent/|queue\.py|contextlib\.py|socket\.py|selectors\.py|subprocess\.py|runpy\.py|<string>|.*\.so|\?\?|.*\.(c|cc|cpp|h)(:|\)))"
)
