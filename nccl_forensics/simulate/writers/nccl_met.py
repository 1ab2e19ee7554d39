"""What NCCL prints of the troubles that a process meets: warnings in the words of its release, and the places that the error passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nccl_forensics.simulate import fabric
from nccl_forensics.simulate.world import Met
from nccl_forensics.simulate.writers.nccl_lines import Lines


def met_lines(w: Lines, met: Met) -> Iterator[str]:
    """What went wrong, as NCCL tells it; nothing of what it does not tell."""
    tell = _TELL.get(met.kind.removeprefix("nccl."))
    return tell(w, met) if tell is not None else iter(())


#: How an error comes up from the making of a communicator.
_INIT = "init.cc:1449@ncclCommInitRankFunc init.cc:1832@ncclCommInitRankDev"


def _preconnect(w: Lines, places: str) -> Iterator[str]:
    """How one comes up from the connections that are made ahead."""
    yield from w.trace(f"{places} transport/generic.cc:19@ncclTransportRingConnect group.cc:146@ncclP2PPreconnectFunc", 2, 50)
    yield from w.trace("group.cc:73@ncclAsyncJobMain", 2, 50, " [Async thread]")


def _completion(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    names = {12: "IBV_WC_RETRY_EXC_ERR", 5: "IBV_WC_WR_FLUSH_ERR", 4: "IBV_WC_LOC_PROT_ERR", 10: "IBV_WC_REM_ACCESS_ERR"}
    status = int(str(f["status"]))
    hca = f" hca {f['hca']}" if w.version >= (2, 22) else ""
    for _ in range(int(str(f.get("times", 2)))):
        if w.version >= (2, 29):
            text = f"with status={names[status]}({status}) opcode=IBV_WC_RDMA_WRITE(1) vendor_err={f['vendor']} {hca}"
        else:
            text = f"with status={status} opcode=1 len=0 vendor err {f['vendor']} ({f['request']}){hca}"
        yield w.warn(met.at, "completion", f"NET/IB: Got completion from peer {f['peer']} {text}", 60)
        yield from w.trace("transport/net.cc:1393@recvProxyProgress", 6, 60)
        if w.version < (2, 30):
            yield from w.trace("proxy.cc:725 proxy.cc:907", 6, 60, " [Progress Thread]")


def _closed(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    yield w.warn(met.at, "closed", f"socketProgress: Connection closed by remote peer {f.get('peer', '')}", 44)
    way = "misc/socket.cc:841@ncclSocketProgress transport/net_socket.cc:553@ncclNetSocketTest transport/net.cc:1393@recvProxyProgress"
    yield from w.trace(way, 6, 44)


def _closed_in_init(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    yield w.warn(met.at, "closed", f"socketProgress: Connection closed by remote peer {f.get('peer', '')}")
    yield from w.trace(f"misc/socket.cc:895@ncclSocketRecv bootstrap.cc:228@socketRecv bootstrap.cc:1029@bootstrapAllGather {_INIT}", 6)


def _connect(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    function = "socketPollConnect" if "refused" in str(f["error"]) else "socketStartConnect"
    tries = int(str(f.get("tries", 34)))
    for n in (1, 2, tries - 1, tries):
        if w.version >= (2, 27, 3):
            yield w.info(f"{function}: connect to {f['peer']} returned {f['error']}, retrying ({n}/{tries}) after sleep for {100 * n} msec")
        elif w.version >= (2, 24, 3):
            yield w.info(f"{function}: connect returned {f['error']}, retrying ({n}/{tries}) after sleep for {100 * n} msec")
        else:
            yield w.info(f"Call to connect returned {f['error']}, retrying")
    if w.version >= (2, 24, 3):
        peer = f"connect to {f['peer']} returned" if w.version >= (2, 27, 3) else "connect returned"
        yield w.warn(met.at, "connect", f"{function}: {peer} {f['error']}, exceeded error retry count after {tries + 1} attempts")
    else:
        yield w.warn(met.at, "connect", f"{function}: Connect to {f['peer']} failed : {f['error']}")
    yield from w.trace(
        "misc/socket.cc:670@ncclSocketReady bootstrap.cc:608@bootstrapInit init.cc:1444@ncclCommInitRankFunc init.cc:1832@ncclCommInitRankDev",
        6,
    )


def _event(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    words = (
        "Got non-fatal async event: port error(10)"
        if w.version >= (2, 28, 7)
        else "Got async error event: port error"
        if w.version >= (2, 23)
        else "Got async event : port error"
    )
    yield w.warn(met.at, "event", f"NET/IB : {f['hca']}:1 {words}", 30)


def _register(w: Lines, met: Met) -> Iterator[str]:
    tail = " with error Cannot allocate memory" + (" errno 12" if w.version < (2, 24) else "")
    for place in ("transport/net_ib.cc:1386@ncclIbConnect", "transport/net_ib.cc:1749@ncclIbAccept"):
        yield w.warn(met.at, "verbs", f"Call to ibv_reg_mr failed{tail}", 44)
        yield from w.trace(f"{place} transport/net.cc:753@sendProxyConnect", 2, 44)
    yield from _preconnect(w, "transport.cc:198@ncclTransportP2pSetup")


def _shm(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    path, size = f["path"], int(str(f["size"]))
    error = f"Error: failed to extend {path} to {size + 4} bytes, error: No space left on device (28)"
    yield w.warn(met.at, "", error, 44, "misc/shmutils.cc:87")
    error = f"Error while creating shared memory segment {path} (size {size}), error: No space left on device (28)"
    yield w.warn(met.at, "", error, 44, "misc/shmutils.cc:128")
    yield from w.trace("transport/shm.cc:549@shmSendProxySetup transport/shm.cc:491@shmProxySetup", 2, 44)
    yield from _preconnect(w, "transport/shm.cc:153@shmSendSetup transport.cc:35@selectTransport transport.cc:148@ncclTransportP2pSetup")


def _cuda(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    yield w.warn(met.at, "", f"Cuda failure {f['code']} '{f['text']}'", 0, str(f.get("place", "enqueue.cc:1623")))
    launch = "group.cc:299@doLaunches group.cc:563@groupLaunch group.cc:694@ncclGroupEndInternal enqueue.cc:2429@ncclEnqueueCheck"
    yield from w.trace(str(f.get("trace", launch)), 1)


def _no_memory(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    yield w.warn(met.at, "", "Cuda failure 2 'out of memory'", 0, "include/alloc.h:228")
    yield from w.trace("include/alloc.h:338@ncclCudaCallocAsyncDebug", 1)
    yield w.warn(met.at, "", f"Failed to CUDA calloc async {f['bytes']} bytes", 0, "include/alloc.h:346")
    yield from w.trace(f"channel.cc:56@initChannel graph/paths.cc:870@ncclTopoComputePaths init.cc:1059@initTransportsRank {_INIT}", 1)


def _no_interface(w: Lines, met: Met) -> Iterator[str]:
    yield w.warn(met.at, "", "Bootstrap : no socket interface found", 0, "bootstrap.cc:115")
    yield from w.trace("init.cc:80@ncclInit init.cc:1858@ncclCommInitRankConfig", 5)


def _duplicate(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    yield w.warn(met.at, "", f"Duplicate GPU detected : rank {f['a']} and rank {f['b']} both on CUDA device {f['bus']}", 0, "init.cc:737")
    yield from w.trace(_INIT, 5)


def _truncated(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    yield w.warn(met.at, "", f"Message truncated : received {f['got']} bytes instead of {f['want']}", 0, "bootstrap.cc:212")
    yield from w.trace(f"bootstrap.cc:974@bootstrapRecv {_INIT}", 3)


def _gone(w: Lines, met: Met) -> Iterator[str]:
    f = met.facts
    bus = w.process.gpu.bus_id.replace(":", "").replace(".", "").lstrip("0")
    if w.version < (2, 30, 3):
        for comm in fabric.comms_of(w.world, w.process.rank):
            if comm.key in w.process.ready:
                yield w.info(
                    f"comm {w.world.pointer(w.process.rank, comm.key):#x} rank {comm.members.index(w.process.rank)} nranks {len(comm.members)} "
                    f"cudaDev {w.local} busId {bus} - {f['word']} COMPLETE",
                    70,
                )


_TELL: dict[str, Callable[[Lines, Met], Iterator[str]]] = {
    "completion": _completion,
    "closed": _closed,
    "closed-in-init": _closed_in_init,
    "connect": _connect,
    "event": _event,
    "register": _register,
    "shm": _shm,
    "cuda": _cuda,
    "no-memory": _no_memory,
    "no-interface": _no_interface,
    "duplicate": _duplicate,
    "truncated": _truncated,
    "gone": _gone,
}
