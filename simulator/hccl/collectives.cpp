#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>
#include "abi/runtime.h"
#include "calls.h"
#include "hccl/communicator.h"
#include "hccl/reduction.h"
#include "hccl/waiting.h"
#include "npusim.h"

namespace {

// Runs `work` on the stream as one task of that name.
HcclResult run_on(void* stream, const char* name, std::function<void()> work) {
    auto* const kept = new std::function<void()>(std::move(work));
    SimKernel kernel{SIM_KERNEL_MAGIC, name,
                     [](void* context) {
                         auto* const mine = static_cast<std::function<void()>*>(context);
                         (*mine)();
                         delete mine;
                     },
                     kept};
    const rtError_t error = rtKernelLaunchWithHandleV2(&kernel, 0, 1, nullptr, nullptr, stream, nullptr);
    if (error != RT_OK) delete kept;
    return error == RT_OK ? HCCL_OK : HCCL_PARAMETER;
}

// Calls `take` for each piece of `total` bytes: where it begins and how long it is.
template <typename Take>
void in_chunks(uint64_t total, uint64_t chunk, Take take) {
    for (uint64_t at = 0; at < total; at += chunk) take(at, std::min(chunk, total - at));
}

// Every rank gives `bytes` from `from`; then `take(rank, chunk, length)` reads what each of them gave.
template <typename Take>
void exchange(Communicator& one, const char* from, uint64_t bytes, Take take) {
    memcpy(one.shared->data[one.rank], from, bytes);
    one.meet();
    for (uint32_t rank = 0; rank < one.ranks; ++rank) take(rank, one.shared->data[rank]);
    one.meet();
}

// One rank gives, and one or all take.
void give(Communicator& one, uint32_t giver, const char* from, bool takes, char* to, uint64_t total) {
    in_chunks(total, kChunkBytes, [&](uint64_t at, uint64_t length) {
        if (one.rank == giver) memcpy(one.shared->data[giver], from + at, length);
        one.meet();
        if (takes) memcpy(to + at, one.shared->data[giver], length);
        one.meet();
    });
}

void send(Communicator& one, uint32_t to, const char* data, uint64_t total) {
    MailSlot& slot = one.shared->mail[one.rank][to];
    in_chunks(total, kMailBytes, [&](uint64_t at, uint64_t length) {
        if (!wait_until([&] { return slot.is_full.load() == 0; })) return;
        memcpy(slot.bytes, data + at, length);
        slot.is_full = 1;
    });
}

void receive(Communicator& one, uint32_t from, char* data, uint64_t total) {
    MailSlot& slot = one.shared->mail[from][one.rank];
    in_chunks(total, kMailBytes, [&](uint64_t at, uint64_t length) {
        if (!wait_until([&] { return slot.is_full.load() == 1; })) return;
        memcpy(data + at, slot.bytes, length);
        slot.is_full = 0;
    });
}

// Sends and receives piece by piece in turns: two ranks that both send first would wait for each other.
struct Transfer {
    HcclSendRecvItem item;
    uint64_t done;
    uint64_t total;
};

bool advance(Communicator& one, Transfer& transfer) {
    const bool sends = transfer.item.kind == HCCL_SEND;
    const uint32_t peer = transfer.item.peer;
    MailSlot& slot = sends ? one.shared->mail[one.rank][peer] : one.shared->mail[peer][one.rank];
    if (transfer.done == transfer.total || slot.is_full.load() != (sends ? 0u : 1u)) return false;
    char* const data = static_cast<char*>(transfer.item.buffer) + transfer.done;
    const uint64_t length = std::min(kMailBytes, transfer.total - transfer.done);
    if (sends) {
        memcpy(slot.bytes, data, length);
    } else {
        memcpy(data, slot.bytes, length);
    }
    slot.is_full = sends ? 1 : 0;
    transfer.done += length;
    return true;
}

HcclResult all_reduce(const char* name, void* from, void* to, uint64_t count, int type, int operation, void* handle,
                      void* stream) {
    Communicator* const one = communicator_of(handle);
    return run_on(stream, name, [=] {
        const size_t size = element_size(type);
        std::vector<char> result(std::min(kChunkBytes, count * size));
        in_chunks(count * size, kChunkBytes, [&](uint64_t at, uint64_t length) {
            exchange(*one, static_cast<const char*>(from) + at, length, [&](uint32_t rank, const char* chunk) {
                if (rank == 0) {
                    memcpy(result.data(), chunk, length);
                } else {
                    reduce(result.data(), chunk, length / size, type, operation);
                }
            });
            memcpy(static_cast<char*>(to) + at, result.data(), length);
        });
    });
}

}  // namespace

HcclResult HcclAllReduce(void* from, void* to, uint64_t count, int type, int operation, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    return all_reduce("HcclAllReduce", from, to, count, type, operation, handle, stream);
}

// Every rank gets the result; only the root's counts.
HcclResult HcclReduce(void* from, void* to, uint64_t count, int type, int operation, uint32_t, void* handle,
                      void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    return all_reduce("HcclReduce", from, to, count, type, operation, handle, stream);
}

HcclResult HcclBroadcast(void* data, uint64_t count, int type, uint32_t root, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclBroadcast", [=] {
        char* const bytes = static_cast<char*>(data);
        give(*one, root, bytes, one->rank != root, bytes, count * element_size(type));
    });
}

HcclResult HcclScatter(void* from, void* to, uint64_t count, int type, uint32_t root, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclScatter", [=] {
        const uint64_t total = count * element_size(type);
        for (uint32_t rank = 0; rank < one->ranks; ++rank)
            give(*one, root, static_cast<const char*>(from) + rank * total, one->rank == rank, static_cast<char*>(to),
                 total);
    });
}

HcclResult HcclAllGather(void* from, void* to, uint64_t count, int type, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclAllGather", [=] {
        const uint64_t total = count * element_size(type);
        in_chunks(total, kChunkBytes, [&](uint64_t at, uint64_t length) {
            exchange(*one, static_cast<const char*>(from) + at, length, [&](uint32_t rank, const char* chunk) {
                memcpy(static_cast<char*>(to) + rank * total + at, chunk, length);
            });
        });
    });
}

HcclResult HcclReduceScatter(void* from, void* to, uint64_t count, int type, int operation, void* handle,
                             void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclReduceScatter", [=] {
        const size_t size = element_size(type);
        const uint64_t total = count * size;
        for (uint32_t part = 0; part < one->ranks; ++part)
            in_chunks(total, kChunkBytes, [&](uint64_t at, uint64_t length) {
                const char* const mine = static_cast<const char*>(from) + part * total + at;
                exchange(*one, mine, length, [&](uint32_t rank, const char* chunk) {
                    char* const result = static_cast<char*>(to) + at;
                    if (part != one->rank) return;
                    if (rank == 0) {
                        memcpy(result, chunk, length);
                    } else {
                        reduce(result, chunk, length / size, type, operation);
                    }
                });
            });
    });
}

HcclResult HcclAlltoAll(const void* from, uint64_t count, int type, const void* to, uint64_t, int, void* handle,
                        void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclAlltoAll", [=] {
        const uint64_t total = count * element_size(type);
        char* const result = static_cast<char*>(const_cast<void*>(to));
        for (uint32_t giver = 0; giver < one->ranks; ++giver)
            for (uint32_t taker = 0; taker < one->ranks; ++taker)
                give(*one, giver, static_cast<const char*>(from) + taker * total, one->rank == taker,
                     result + giver * total, total);
    });
}

HcclResult HcclAlltoAllV(const void* from, const void* counts, const void* offsets, int type, const void* to,
                         const void* to_counts, const void* to_offsets, int to_type, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    // The four arrays of 64-bit element counts belong to the caller: copied before it may reuse them.
    const auto copy = [one](const void* array) {
        const auto* const first = static_cast<const uint64_t*>(array);
        return std::vector<uint64_t>(first, first + one->ranks);
    };
    std::vector<HcclSendRecvItem> items;
    const std::vector<uint64_t> given = copy(counts), at = copy(offsets), taken = copy(to_counts),
                                to_at = copy(to_offsets);
    for (uint32_t peer = 0; peer < one->ranks; ++peer) {
        char* const source = static_cast<char*>(const_cast<void*>(from)) + at[peer] * element_size(type);
        char* const target = static_cast<char*>(const_cast<void*>(to)) + to_at[peer] * element_size(to_type);
        items.push_back({HCCL_SEND, source, given[peer], type, peer});
        items.push_back({HCCL_RECV, target, taken[peer], to_type, peer});
    }
    return HcclBatchSendRecv(items.data(), static_cast<uint32_t>(items.size()), handle, stream);
}

HcclResult HcclBarrier(void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclBarrier", [one] { one->meet(); });
}

HcclResult HcclSend(void* data, uint64_t count, int type, uint32_t to, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclSend",
                  [=] { send(*one, to, static_cast<const char*>(data), count * element_size(type)); });
}

HcclResult HcclRecv(void* data, uint64_t count, int type, uint32_t from, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    return run_on(stream, "HcclRecv",
                  [=] { receive(*one, from, static_cast<char*>(data), count * element_size(type)); });
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, void* handle, void* stream) {
    SIM_CALL(HCCL_PARAMETER);
    Communicator* const one = communicator_of(handle);
    std::vector<Transfer> transfers;
    for (uint32_t i = 0; i < count; ++i)
        transfers.push_back({items[i], 0, items[i].count * element_size(items[i].type)});
    return run_on(stream, "HcclBatchSendRecv", [one, transfers = std::move(transfers)]() mutable {
        const auto is_done = [&] {
            bool all = true;
            for (Transfer& transfer : transfers) {
                while (advance(*one, transfer)) {
                }
                all = all && transfer.done == transfer.total;
            }
            return all;
        };
        wait_until(is_done);
    });
}
