// The block tracker where memory ends: whichever of its allocations fails, std::bad_alloc comes out and the tracker can
// be destroyed. An aggregator must survive a ring that has grown too large for it. (What is asked of a tracker behind
// that is refused, module/kernel.cpp.)
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "check.h"
#include "kernel/block_tracker.h"

namespace {

constexpr std::size_t kNoEnd = ~std::size_t{0};
std::size_t g_left = kNoEnd;  // allocations that succeed

void* allocate(std::size_t bytes, std::size_t alignment) {
    if (g_left == 0) throw std::bad_alloc();
    if (g_left != kNoEnd) --g_left;
    const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
    if (void* at = std::aligned_alloc(alignment, whole != 0 ? whole : alignment)) return at;
    throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

namespace {

using namespace memscope;
using namespace memscope::kernel;

constexpr std::size_t kBlocks = 600;  // more than kManyBlocks, and several sizes of every table

struct Batch {
    EventColumns events;
    std::vector<u64> ptr, ts;
    u8 kind, device_type = 1, pool = 1, flags = 0;
    u32 tid = 1, step = 1, aux = 3;
    i64 size = 512, total = 0;
    i16 device = 0;
    u64 stack_c = 0, name = 7;

    explicit Batch(Kind what, bool backwards = false) : kind(static_cast<u8>(what)) {
        for (u64 at = 0; at < kBlocks; ++at) {
            ptr.push_back((u64{1} << 32) + 512 * (backwards ? kBlocks - 1 - at : at));
            ts.push_back(1000 + at);
        }
        events.n = kBlocks;
        events.ptr = Column<u64>(ptr.data());
        events.ts = Column<u64>(ts.data());
        events.stack_py = Column<u64>(ptr.data());  // a site each
#define SAME(column) events.column = Column<decltype(column)>(&(column), 0)
        SAME(kind), SAME(device_type), SAME(pool), SAME(flags), SAME(tid), SAME(step), SAME(aux), SAME(size);
        SAME(total), SAME(device), SAME(stack_c), SAME(name);
#undef SAME
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
};

void feed_all(BlockTracker& tracker) {
    static const Batch born(Kind::MALLOC), labels(Kind::LABEL_ADDR), freed(Kind::FREE, true);
    for (const Batch* batch : {&born, &labels, &freed, &born}) tracker.feed(batch->events, nullptr);
    tracker.shrink();
    for (const Batch* batch : {&freed, &born, &freed}) tracker.feed(batch->events, nullptr);
    tracker.take_ended_lives();
}

// Whether so many allocations were enough.
bool is_enough(std::size_t allocations, bool lives) {
    BlockTracker tracker(1000, 100, lives);
    g_left = allocations;
    bool is_whole = true;
    try {
        feed_all(tracker);
    } catch (const std::bad_alloc&) {
        is_whole = false;
    }
    g_left = kNoEnd;
    if (is_whole) CHECK(tracker.live().ptr.empty());
    return is_whole;
}

CASE(every_allocation_may_fail) {
    for (const bool lives : {false, true}) {
        CHECK(is_enough(kNoEnd, lives));
        std::size_t allocations = 0;
        while (!is_enough(allocations, lives)) ++allocations;
        CHECK(allocations > 100);
    }
}

}  // namespace

int main(int argc, char** argv) { return check::run(argc, argv); }
