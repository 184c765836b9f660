// Source: HCCL's calls (libhccl.so), for the names of the communicators that it takes memory for.
//
// A communicator has buffers of hundreds of MiB from the driver, taken when it is made or at its first operation. What
// source hal sees of that is labelled, at the level of details, with the communicator's name, which is the same on all
// of its ranks. Nothing is told of a call that took nothing: it costs a look at the thread's own memory.
#include <cstring>

#include "hook/guard.h"
#include "hook/patch.h"
#include "hook/recorder.h"
#include "hook/told_events.h"
#include "source/hccl_memory.h"

namespace memscope {

__thread HcclCall t_hccl_call;

namespace {

using Status = int;  // HcclResult; 0 is success
using Comm = void*;

constexpr unsigned kLabelLevel = 3;      // the first of details
constexpr std::size_t kNameBytes = 256;  // COMM_NAME_MAX_LENGTH is 128

std::atomic<void*> g_name;

void tell(Comm communicator) noexcept {
    const auto name_of = original_of<Status (*)(Comm, char*)>(g_name);
    if (name_of == nullptr || communicator == nullptr) return;
    // Before anybody is asked, who may call HCCL again.
    const u32 count = t_hccl_call.count;
    unsigned long long addresses[HcclCall::kMost];
    for (u32 i = 0; i < count; ++i) addresses[i] = t_hccl_call.taken[i];
    char name[kNameBytes] = {};
    if (name_of(communicator, name) != 0 || name[0] == '\0') return;
    memscope_label_addresses(kLabelLevel, name, strnlen(name, sizeof name), addresses, count, 0);
}

// The communicator is asked when HCCL has returned, so never within its locks; a made one is known then alone.
template <typename Call, typename Find>
Status watched(const Call& call_original, const Find& communicator) noexcept {
    if (t_hccl_call.is_open || !is_watching()) return call_original();
    t_hccl_call.count = 0;
    t_hccl_call.is_open = true;
    const Status status = call_original();
    t_hccl_call.is_open = false;
    if (t_hccl_call.count != 0 && status == 0) tell(communicator());
    return status;
}

// A hook of a function with these parameters, of which the one at `At` is the communicator or where it will stand.
template <typename Signature>
struct Watched;
template <typename... Parameters>
struct Watched<Status(Parameters...)> {
    template <std::atomic<void*>& original, std::size_t At>
    static Status function(Parameters... values) noexcept {
        return watched([&] { return original_of<Status (*)(Parameters...)>(original)(values...); },
                       [&] { return at<At>(values...); });
    }

private:
    template <std::size_t At, typename First, typename... Rest>
    static Comm at(First first, Rest... rest) noexcept {
        if constexpr (At == 0)
            return of(first);
        else
            return at<At - 1>(rest...);
    }
    static Comm of(Comm communicator) noexcept { return communicator; }
    static Comm of(Comm* made) noexcept { return made != nullptr ? *made : nullptr; }
};

// Types of data, operations and results are enumerations there.
#define MEMSCOPE_HCCL(X)                                                                                          \
    X(CommInitRootInfo, 3, u32, const void*, u32, Comm*)                                                          \
    X(CommInitRootInfoConfig, 4, u32, const void*, u32, const void*, Comm*)                                       \
    X(CommInitClusterInfo, 2, const char*, u32, Comm*)                                                            \
    X(CommInitClusterInfoConfig, 3, const char*, u32, void*, Comm*)                                               \
    X(CreateSubCommConfig, 6, Comm*, u32, u32*, u64, u32, void*, Comm*)                                           \
    X(AllReduce, 5, void*, void*, u64, int, int, Comm, void*)                                                     \
    X(Broadcast, 4, void*, u64, int, u32, Comm, void*)                                                            \
    X(ReduceScatter, 5, void*, void*, u64, int, int, Comm, void*)                                                 \
    X(Scatter, 5, void*, void*, u64, int, u32, Comm, void*)                                                       \
    X(AllGather, 4, void*, void*, u64, int, Comm, void*)                                                          \
    X(Reduce, 6, void*, void*, u64, int, int, u32, Comm, void*)                                                   \
    X(AlltoAll, 6, const void*, u64, int, const void*, u64, int, Comm, void*)                                     \
    X(AlltoAllV, 8, const void*, const void*, const void*, int, const void*, const void*, const void*, int, Comm, \
      void*)                                                                                                      \
    X(AlltoAllVC, 5, const void*, const void*, int, const void*, int, Comm, void*)                                \
    X(Barrier, 0, Comm, void*)                                                                                    \
    X(Send, 4, void*, u64, int, u32, Comm, void*)                                                                 \
    X(Recv, 4, void*, u64, int, u32, Comm, void*)                                                                 \
    X(BatchSendRecv, 2, void*, u32, Comm, void*)

#define X(name, at, ...) std::atomic<void*> g_##name;
MEMSCOPE_HCCL(X)
#undef X

const Hook kHooks[] = {{"HcclGetCommName", nullptr, &g_name},
#define X(name, at, ...) \
    {"Hccl" #name, reinterpret_cast<void*>(&Watched<Status(__VA_ARGS__)>::function<g_##name, at>), &g_##name},
                       MEMSCOPE_HCCL(X)
#undef X
};

}  // namespace

MEMSCOPE_SOURCE("hccl", "CANN", "for which communicator HCCL takes memory", kHooks);

}  // namespace memscope
