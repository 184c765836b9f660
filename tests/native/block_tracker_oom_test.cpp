// The block tracker and memory: the same again and again takes no more of it; and where it ends, whichever of its
// allocations fails, std::bad_alloc comes out and the tracker can be destroyed. An aggregator must survive a ring that
// has grown too large for it. (What is asked of a tracker behind that is refused, module/kernel.cpp.)
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "check.h"
#include "kernel/block_tracker.h"

namespace {

constexpr std::size_t kNoEnd = ~std::size_t{0};
std::size_t g_left = kNoEnd;  // allocations that succeed
std::size_t g_held = 0;       // bytes that were asked for

// Stands before each piece of memory.
struct Piece {
    std::size_t bytes, offset;  // that were asked for; from where it begins
};

void* allocate(std::size_t bytes, std::size_t alignment) {
    if (g_left == 0) throw std::bad_alloc();
    if (g_left != kNoEnd) --g_left;
    const std::size_t offset = alignment > sizeof(Piece) ? alignment : sizeof(Piece);
    auto* const begin = static_cast<char*>(std::aligned_alloc(offset, (bytes + offset - 1) / offset * offset + offset));
    if (begin == nullptr) throw std::bad_alloc();
    const Piece piece = {bytes, offset};
    std::memcpy(begin + offset - sizeof piece, &piece, sizeof piece);
    g_held += bytes;
    return begin + offset;
}

void give_back(void* at) noexcept {
    if (at == nullptr) return;
    Piece piece;
    std::memcpy(&piece, static_cast<char*>(at) - sizeof piece, sizeof piece);
    g_held -= piece.bytes;
    std::free(static_cast<char*>(at) - piece.offset);
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* at) noexcept { give_back(at); }
void operator delete(void* at, std::size_t) noexcept { give_back(at); }
void operator delete(void* at, std::align_val_t) noexcept { give_back(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { give_back(at); }

namespace {

using namespace memscope;
using namespace memscope::kernel;

constexpr std::size_t kBlocks = 600;  // several sizes of every table

struct Batch {
    EventColumns events;
    std::vector<u64> ptr, ts;
    std::vector<u32> aux;
    u8 kind, device_type = 1, pool = 1, flags = 0;
    u32 tid = 1, step = 1;
    i64 size = 512, total = 0;
    i16 device = 0;
    u64 stack_c = 0, name = 7;

    explicit Batch(Kind what, bool backwards = false) : kind(static_cast<u8>(what)) {
        for (u64 at = 0; at < kBlocks; ++at) {
            ptr.push_back((u64{1} << 32) + 512 * (backwards ? kBlocks - 1 - at : at));
            ts.push_back(1000 + at);
            aux.push_back(3);
        }
        events.n = kBlocks;
        events.ptr = Column<u64>(ptr.data());
        events.ts = Column<u64>(ts.data());
        events.stack_py = Column<u64>(ptr.data());  // a site each
        events.aux = Column<u32>(aux.data());
#define SAME(column) events.column = Column<decltype(column)>(&(column), 0)
        SAME(kind), SAME(device_type), SAME(pool), SAME(flags), SAME(tid), SAME(step), SAME(size);
        SAME(total), SAME(device), SAME(stack_c), SAME(name);
#undef SAME
    }
    // Of torch's pool on a card, on several streams by turns, each address so many bytes further on.
    Batch(Kind what, u32 streams, u64 beyond) : Batch(what) {
        device_type = static_cast<u8>(DeviceType::NPU);
        pool = static_cast<u8>(Pool::PTA);
        for (u32 at = 0; at < kBlocks; ++at) {
            ptr[at] += beyond;
            aux[at] = stream_word(1 + at % streams) | (what == Kind::ACCESS ? 1u : 0u);
        }
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

// Operators allocate, touch and free: a stream's blocks begin to be judged while others live that are not.
void feed_judged(BlockTracker& tracker) {
    static const Batch before(Kind::MALLOC, 1, 0), started(Kind::OP_START, 5, 0), born(Kind::MALLOC, 5, 1u << 20),
        used(Kind::ACCESS, 5, (1u << 20) + 100), ended(Kind::OP_END, 5, 0), freed(Kind::FREE, 5, 1u << 20);
    for (const Batch* batch : {&before, &started, &born, &used, &ended, &freed, &born})
        tracker.feed(batch->events, nullptr);
    tracker.shrink();
    for (const Batch* batch : {&used, &freed}) tracker.feed(batch->events, nullptr);
    CHECK_EQUAL(tracker.inefficiencies().floors.stream.size(), 5u);
    tracker.take_ended_lives();
}

// Whether so many allocations were enough.
bool is_enough(void feed(BlockTracker&), std::size_t allocations, bool lives) {
    BlockTracker tracker(1000, 100, lives);
    g_left = allocations;
    bool is_whole = true;
    try {
        feed(tracker);
    } catch (const std::bad_alloc&) {
        is_whole = false;
    }
    g_left = kNoEnd;
    if (is_whole) CHECK_EQUAL(tracker.live().ptr.size(), feed == feed_judged ? kBlocks : 0);
    return is_whole;
}

void fail_each(void feed(BlockTracker&)) {
    for (const bool lives : {false, true}) {
        CHECK(is_enough(feed, kNoEnd, lives));
        std::size_t allocations = 0;
        while (!is_enough(feed, allocations, lives)) ++allocations;
        CHECK(allocations > 100);
    }
}

// Between blocks of which operators take notice and those of which they do not, the same lives and ends each time.
void check_bounded(void feed(BlockTracker&)) {
    for (const bool lives : {false, true}) {
        BlockTracker tracker(1000, 100, lives);
        for (int round = 0; round < 3; ++round) feed(tracker);
        const std::size_t before = g_held;
        for (int round = 0; round < 30; ++round) feed(tracker);
        CHECK_EQUAL(g_held, before);
    }
}

CASE(what_comes_and_goes_takes_no_more_memory) {
    check_bounded([](BlockTracker& tracker) {
        static const Batch born(Kind::MALLOC), labels(Kind::LABEL_ADDR), freed(Kind::FREE, true);
        for (const Batch* batch : {&born, &labels, &freed}) tracker.feed(batch->events, nullptr);
        tracker.take_ended_lives();
    });
}

CASE(what_operators_touch_takes_no_more_memory_when_it_is_gone) {
    check_bounded([](BlockTracker& tracker) {
        static const Batch started(Kind::OP_START, 5, 0), born(Kind::MALLOC, 5, 1u << 20),
            used(Kind::ACCESS, 5, (1u << 20) + 100), ended(Kind::OP_END, 5, 0), freed(Kind::FREE, 5, 1u << 20);
        for (const Batch* batch : {&started, &born, &used, &ended, &freed}) tracker.feed(batch->events, nullptr);
        tracker.take_ended_lives();
    });
}

CASE(every_allocation_may_fail) { fail_each(feed_all); }

CASE(every_allocation_may_fail_while_blocks_are_judged) { fail_each(feed_judged); }

}  // namespace

int main(int argc, char** argv) { return check::run(argc, argv); }
