// In which order the operators of a process use its pools: the clock by which inefficient blocks are judged.
//
//   api     an operator with all that happens in its thread until it ends is one; a MALLOC, ACCESS or FREE outside of
//           any is one of its own. They are numbered from 1 in the order in which they begin.
//   family  pools that one framework feeds: each counts for itself, so that what happens to host memory makes no block
//           of the card idle. Operators of torch count in the families of torch's pools, those of ATB in that of ATB.
//   clock   what numbers them: one of each family for whose events nobody tells a stream, in the order of the host,
//           which all operators of the family advance; and one of each stream of a card. The latter is advanced by the
//           operators that are launched on its stream, and by others that touch a block of it, allocate it or free it:
//           what other streams do meanwhile may come before or behind all of that.
//   threads an operator ends for its own thread alone, and one within another is part of it. Operators that run at once
//           in two threads (backward passes, loaders) have the order of their beginnings.
//   letter  as upstream counts, for whoever must agree with it: one operator is open for all threads, one that begins
//           takes the place of the other, and the end of any ends it, so that the rest of an outer one is told apart
//           event by event.
//
// Memory: threads that are inside an operator, kMaxThreads at most; what further threads do is outside of any. Clocks
// of kMaxStreams streams at most; further streams have none.
#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel/pool_key.h"
#include "kernel/running.h"
#include "record/record.h"

namespace memscope::kernel {

enum class Family : u8 { PTA, HOST, CUDA, ATB, MINDSPORE, COUNT };
inline constexpr std::size_t kFamilies = static_cast<std::size_t>(Family::COUNT);
inline constexpr std::size_t kMaxStreams = 256;  // of all cards of a process

// Whose blocks are judged: those that a framework hands out. COUNT: no family's.
constexpr Family family_of(PoolKey pool) noexcept {
    switch (static_cast<Pool>(pool.pool)) {
        case Pool::PTA:
            return Family::PTA;
        case Pool::HOST:
            return Family::HOST;
        case Pool::CUDA:
            return Family::CUDA;
        case Pool::ATB:
            return Family::ATB;
        case Pool::MINDSPORE:
            return Family::MINDSPORE;
        default:
            return Family::COUNT;
    }
}

// Of a stream that torch has told. stream: as stream_of() has it.
struct StreamKey {
    u8 device_type;
    i16 device;
    u32 stream;

    bool operator==(const StreamKey& other) const noexcept {
        return device_type == other.device_type && device == other.device && stream == other.stream;
    }
};

class ApiOrder {
public:
    using Clock = u32;
    static constexpr Clock kNoClock = ~Clock{0};

    enum class Rule : u8 { BY_THREAD, LETTER };
    explicit ApiOrder(Rule rule = Rule::BY_THREAD) : rule_(rule), clocks_(kFamilies) {}

    // By which blocks of a pool are judged. stream: kNoStream where nobody told.
    static constexpr Clock clock_of(Family family) noexcept { return static_cast<Clock>(family); }
    Clock clock_of(PoolKey pool, u32 stream);

    // OP_START and OP_END; framework: without its stream, which stands beside it.
    void start(u32 tid, u32 framework, StreamKey where = {0, 0, kNoStream});
    void end(u32 tid, u32 framework);

    // When something happens.
    struct Moment {
        u64 api = 0;
        u32 operators = 0;      // that had begun by then
        bool is_given = false;  // in an operator that has been given tensors
    };
    Moment malloc(Clock clock, u32 tid);
    Moment access(Clock clock, u32 tid);
    Moment free(Clock clock, u32 tid);

    // The latest api in which a block was allocated, freed, accessed; 0: none. An operator counts when it has ended.
    u64 last_malloc(Clock clock) const noexcept { return clocks_[clock].last_malloc; }
    u64 last_free(Clock clock) const noexcept { return clocks_[clock].last_free; }
    u64 last_access(Clock clock) const noexcept { return clocks_[clock].last_access; }
    u64 latest(Clock clock) const noexcept { return clocks_[clock].latest; }
    u32 operators() const noexcept { return operators_; }

    // Events are missing: nothing is known to run.
    void forget() noexcept {
        threads_.clear();
        known_ = nullptr;
        is_full_ = false;
    }

private:
    static constexpr u32 kAtb = 1;
    struct State {
        u64 latest = 0, last_malloc = 0, last_free = 0, last_access = 0;
    };
    // The number of an operator by one clock (0: it has none), and whether something was allocated or freed in it.
    struct Part {
        u64 api = 0;
        bool has_malloc = false, has_free = false;
    };
    // What one thread runs of one framework.
    struct Open {
        u32 depth = 0;
        bool is_given = false;
        std::array<Part, kFamilies> families;
        std::vector<std::pair<Clock, Part>> streams;  // a handful
    };

    static constexpr std::size_t index(Family family) noexcept { return static_cast<std::size_t>(family); }
    Family family_by(Clock clock) const noexcept;
    Clock obtain_clock(const StreamKey& key);
    void number(Open& open, Clock clock);
    Part& part_of(Open& open, Clock clock);
    Open* around(Clock clock, u32 tid);
    Open* find(u32 tid, u32 framework);
    Open* obtain(u32 tid, u32 framework);
    void note_end(Clock clock, const Part& part) noexcept;
    u64 key(u32 tid, u32 framework) const noexcept {
        return u64{rule_ == Rule::LETTER ? 0 : tid} << 1 | (framework == kAtb ? 1 : 0);
    }
    Moment happen(Open* open, Clock clock, bool Part::* what, u64 State::* last);

    const Rule rule_;
    std::vector<State> clocks_;       // first those of the families
    std::vector<StreamKey> streams_;  // of the others
    std::size_t latest_stream_ = 0;   // that was asked for: nearly always the next one
    std::unordered_map<u64, Open> threads_;
    u64 known_key_ = 0;  // of the latest that was asked for
    Open* known_ = nullptr;
    bool is_full_ = false;  // kMaxThreads are inside an operator, as far as is known
    u32 operators_ = 0;
};

}  // namespace memscope::kernel
