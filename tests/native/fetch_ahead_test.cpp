// With many live blocks the tracker looks at the events that come, to fetch what they will touch. That must be legal
// (this runs under every sanitizer) and change nothing: events one by one, where there is none to look ahead to, make
// the same tables.
#include <random>
#include <vector>

#include "check.h"
#include "kernel/block_tracker.h"

using namespace memscope;
using namespace memscope::kernel;

namespace {

constexpr std::size_t kLive = 6000;  // of one pool: more than those from which on it is looked ahead
constexpr std::size_t kTurns = 20'000;

struct Columns {
    std::vector<u8> kind, pool;
    std::vector<u64> ptr, ts, stack_py;
    std::vector<u32> step;
    std::vector<i64> size;

    void add(Kind what, Pool of, u64 address, i64 bytes, u64 stack, u32 in_step) {
        kind.push_back(static_cast<u8>(what));
        pool.push_back(static_cast<u8>(of));
        ptr.push_back(address);
        size.push_back(bytes);
        stack_py.push_back(stack);
        step.push_back(in_step);
        ts.push_back(1000 + ts.size());
    }

    // n events from `first` on.
    EventColumns part(std::size_t first, std::size_t n) const {
        static const u64 zero = 0;
        static const i64 unknown = kUnknown;
        static const i16 device = 0;
        static const u8 device_type = static_cast<u8>(DeviceType::CUDA), flags = 0;
        static const u32 tid = 1;
        EventColumns events;
        events.n = n;
        events.kind = Column<u8>(&kind[first]);
        events.pool = Column<u8>(&pool[first]);
        events.ptr = Column<u64>(&ptr[first]);
        events.ts = Column<u64>(&ts[first]);
        events.size = Column<i64>(&size[first]);
        events.stack_py = Column<u64>(&stack_py[first]);
        events.step = Column<u32>(&step[first]);
        events.stack_c = Column<u64>(&zero, 0);
        events.total = Column<i64>(&unknown, 0);
        events.device = Column<i16>(&device, 0);
        events.device_type = Column<u8>(&device_type, 0);
        events.flags = Column<u8>(&flags, 0);
        events.tid = Column<u32>(&tid, 0);
        return events;
    }
};

// Blocks of two pools at the same addresses come and go in no order: released ones whose entries still name a place,
// addresses that nobody has had, whole pools that end.
Columns churn() {
    std::mt19937_64 chance(1);
    Columns all;
    std::vector<bool> is_live[2] = {std::vector<bool>(2 * kLive), std::vector<bool>(2 * kLive)};
    const auto turn = [&](std::size_t pool, std::size_t at, u32 step) {
        const bool ends = is_live[pool][at];
        is_live[pool][at] = !ends;
        all.add(ends ? Kind::FREE : Kind::MALLOC, pool == 0 ? Pool::CUDA : Pool::HOST, (at + 1) << 9,
                ends ? 0 : static_cast<i64>(512 * (1 + at % 7)), 1 + chance() % 300, step);
    };
    for (std::size_t at = 0; at < kLive; ++at) turn(0, at, 1);
    for (std::size_t at = 0; at < kTurns; ++at)
        turn(chance() % 16 == 0 ? 1 : 0, chance() % (2 * kLive), static_cast<u32>(2 + at / 4000));
    for (std::size_t at = 0; at < 2 * kLive; ++at)
        if (is_live[0][at]) turn(0, at, 8);
    return all;
}

#define SAME(type, name) CHECK(one.name == other.name);
void check_same(const LiveTable& one, const LiveTable& other) { MEMSCOPE_LIVE_COLUMNS(SAME) }
void check_same(const LifeTable& one, const LifeTable& other) { MEMSCOPE_LIFE_COLUMNS(SAME) }
void check_same(const SiteTable& one, const SiteTable& other) { MEMSCOPE_SITE_COLUMNS(SAME) }
void check_same(const SumTable& one, const SumTable& other) { MEMSCOPE_SUM_COLUMNS(SAME) }
void check_same(const StepTable& one, const StepTable& other) { MEMSCOPE_STEP_COLUMNS(SAME) }
void check_same(const SitePeakTable& one, const SitePeakTable& other) { MEMSCOPE_SITE_PEAK_COLUMNS(SAME) }
#undef SAME

}  // namespace

CASE(what_is_fetched_ahead_changes_nothing) {
    const Columns all = churn();
    for (const bool lives : {false, true}) {
        BlockTracker ahead(200, 1000, lives), one_by_one(200, 1000, lives);
        constexpr std::size_t kBatch = 777;
        for (std::size_t first = 0; first < all.kind.size(); first += kBatch) {
            const std::size_t n = std::min(kBatch, all.kind.size() - first);
            ahead.feed(all.part(first, n), nullptr);
            for (std::size_t at = first; at < first + n; ++at) one_by_one.feed(all.part(at, 1), nullptr);
            if (first % (9 * kBatch) == 0) ahead.shrink();
        }
        check_same(ahead.held(), one_by_one.held());
        check_same(ahead.sites(), one_by_one.sites());
        check_same(ahead.sums(), one_by_one.sums());
        check_same(ahead.steps(), one_by_one.steps());
        check_same(ahead.site_peaks(), one_by_one.site_peaks());
        const LifeTable ended = ahead.take_ended_lives();
        CHECK_EQUAL(ended.ptr.size(), lives ? ahead.facts().allocs - ahead.live().ptr.size() : 0);
        check_same(ended, one_by_one.take_ended_lives());
        CHECK_EQUAL(ahead.facts().events, all.kind.size());
    }
}

int main(int argc, char** argv) { return check::run(argc, argv); }
