// The block tracker over columns of any bytes, as a damaged ring or somebody else's run holds them: every table can be
// made, rows of steps and pools are bounded, and nothing is undefined.
#include "kernel/block_tracker.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

using namespace memscope;
using namespace memscope::kernel;

namespace {

void expect(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "block_tracker_fuzz: %s\n", what);
    abort();
}

// Says one value after the other: from the input, small, or an extreme one.
class Values {
public:
    Values(const u8* bytes, std::size_t count) : bytes_(bytes), count_(count) {}

    bool more() const { return at_ < count_; }

    u8 byte() { return more() ? bytes_[at_++] : 0; }

    u64 any() {
        switch (const u8 choice = byte(); choice % 8) {
            case 0:
                return (u64{byte()} << 56) | (u64{byte()} << 40) | (u64{byte()} << 31) | byte();
            case 1:
                return ~u64{0} - byte() % 4;
            case 2:
                return (u64{1} << (byte() % 64)) - byte() % 3;
            default:
                return choice / 8 % 4;
        }
    }

private:
    const u8* bytes_;
    std::size_t count_, at_ = 0;
};

constexpr u8 kKinds[] = {
    static_cast<u8>(Kind::MALLOC),     static_cast<u8>(Kind::MALLOC),        static_cast<u8>(Kind::FREE),
    static_cast<u8>(Kind::FREE),       static_cast<u8>(Kind::STEP),          static_cast<u8>(Kind::RANGE_END),
    static_cast<u8>(Kind::ACCESS),     static_cast<u8>(Kind::KERNEL_LAUNCH), static_cast<u8>(Kind::MAP),
    static_cast<u8>(Kind::UNMAP),      static_cast<u8>(Kind::ACCESS),        static_cast<u8>(Kind::OP_START),
    static_cast<u8>(Kind::OP_END),     static_cast<u8>(Kind::LABEL_PUSH),    static_cast<u8>(Kind::LABEL_POP),
    static_cast<u8>(Kind::LABEL_ADDR), static_cast<u8>(Kind::LABEL_ADDR),    static_cast<u8>(Kind::GAP),
    static_cast<u8>(Kind::SYSTEM),     static_cast<u8>(Kind::RANGE_START),   static_cast<u8>(Kind::CALL)};

using PoolOf = std::tuple<u8, i16, u8>;

// The bytes that rows of a table say of each pool; of its last step where it has rows of several.
template <typename Table>
std::map<PoolOf, i64> bytes_by_pool(const Table& table, const std::vector<i64>& bytes, const std::vector<u32>* step,
                                    u32 last) {
    std::map<PoolOf, i64> sums;
    for (std::size_t row = 0; row < bytes.size(); ++row)
        if (step == nullptr || (*step)[row] == last)
            sums[{table.device_type[row], table.device[row], table.pool[row]}] += bytes[row];
    return sums;
}

// Whose bytes a pool holds, and from which sites, add up to what it holds.
void expect_owners_add_up(const BlockTracker& tracker) {
    const LiveTable live = tracker.live();
    const OwnerSumTable sums = tracker.owner_sums();
    const OwnerPeakTable peaks = tracker.owner_peaks();
    const OwnedSiteSumTable pair_sums = tracker.owned_site_sums();
    const OwnedSitePeakTable pair_peaks = tracker.owned_site_peaks();
    const std::size_t most = kMaxOwnerRows + kOwnersPerStep;
    expect(sums.owner.size() <= kMaxPools * most && pair_sums.owner.size() <= kMaxPools * most, "rows of owners");
    const u32 step = tracker.step();
    const auto held = bytes_by_pool(live, live.size, nullptr, 0);
    const auto at = [](const std::map<PoolOf, i64>& by_pool, const PoolOf& pool) {
        const auto found = by_pool.find(pool);
        return found == by_pool.end() ? 0 : found->second;
    };
    const auto highest = bytes_by_pool(peaks, peaks.bytes, nullptr, 0);
    const auto peak = bytes_by_pool(sums, sums.peak_bytes, &sums.step, step);
    for (const auto& [pool, bytes] : bytes_by_pool(sums, sums.end_bytes, &sums.step, step))
        expect(bytes == at(held, pool), "bytes of owners");
    for (const auto& [pool, bytes] : bytes_by_pool(pair_sums, pair_sums.end_bytes, &pair_sums.step, step))
        expect(bytes == at(held, pool), "bytes of owners by site");
    for (const auto& [pool, bytes] : bytes_by_pool(pair_sums, pair_sums.peak_bytes, &pair_sums.step, step))
        expect(bytes == at(peak, pool), "bytes of owners by site at the peak of a step");
    for (const auto& [pool, bytes] : bytes_by_pool(pair_peaks, pair_peaks.bytes, nullptr, 0))
        expect(bytes == at(highest, pool), "bytes of owners by site at the peak");
    const PhaseTables phases = tracker.phases();
    expect(phases.rows.step.size() <= kMaxPools * kMaxPhases, "rows of phases");
    std::vector<i64> owned(phases.rows.step.size());
    for (std::size_t at_row = 0; at_row < phases.owners.row.size(); ++at_row)
        owned[phases.owners.row[at_row]] += phases.owners.bytes[at_row];
    expect(owned == phases.rows.peak_bytes, "bytes of owners at the peaks of phases");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8* bytes, std::size_t count) {
    Values values(bytes, count);
    const u8 options = values.byte();
    BlockTracker tracker(1 + options % 32, (options & 64) != 0 ? 8 : 1 << 10, (options & 16) != 0);
    tracker.set_parent((options & 128) != 0);
    std::size_t lives = 0;
    EnrichTable enriched;
    while (values.more()) {
        const std::size_t n = 1 + values.byte() % 16;
        EventColumns events;
        events.n = n;
        std::vector<std::vector<unsigned char>> held;
        const auto fill = [&](auto& column, auto one, bool is_kind) {
            using Type = decltype(one);
            const std::size_t rows = values.byte() % 8 == 0 ? 1 : n;
            auto& column_bytes = held.emplace_back(rows * sizeof(Type));
            for (std::size_t row = 0; row < rows; ++row) {
                one = static_cast<Type>(is_kind ? kKinds[values.byte() % sizeof kKinds] : values.any());
                std::memcpy(column_bytes.data() + row * sizeof(Type), &one, sizeof(Type));
            }
            column = Column<Type>(column_bytes.data(), rows == n ? sizeof(Type) : 0);
        };
#define X(type, name) fill(events.name, type{}, std::strcmp(#name, "kind") == 0);
        MEMSCOPE_FOLD_COLUMNS(X)
        MEMSCOPE_FOLD_MORE_COLUMNS(X)
#undef X
        tracker.feed(events, (options & 32) != 0 ? &enriched : nullptr);
        lives += tracker.take_ended_lives().ptr.size();
    }
    const StepTable steps = tracker.steps();
    const SiteTable sites = tracker.sites();
    expect(steps.step.size() <= kMaxPools * kMaxStepRows, "rows of steps");
    expect(sites.pool.size() <= 32 + kMaxPools, "sites");
    expect(tracker.begins().step.size() <= kMaxBegins, "begins");
    expect(tracker.live().ptr.size() <= tracker.held().ptr.size(), "blocks");
    const RingFacts facts = tracker.facts();
    expect(facts.sum_stride != 0, "the stride of the sums");
    if ((options & 16) != 0) {
        lives += tracker.going_lives().ptr.size();
        expect(lives == facts.allocs, "lives");
        expect(tracker.segments().ptr.size() <= kMaxSegments + 2 * facts.allocs, "segments");
    }
    expect_owners_add_up(tracker);
    tracker.sums();
    tracker.ages();
    tracker.anomalies();
    const InefficiencyTables inefficient = tracker.inefficiencies();
    expect(inefficient.rows.pool.size() <= kMaxPools * kMaxNeedRows, "inefficient blocks");
    expect(inefficient.floors.pool.size() <= kMaxPools * kMaxStreams, "floors");
    return 0;
}
