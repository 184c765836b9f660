// Which blocks of a process are weights, gradients, optimizer states, activations and temporaries, by their roles.
//
// In: the events of a process, in order, with the role of each allocation's stack (msmemscope/imports/torch_frames.py).
// Out: labels, each at its place among the events.
//
// A training goes through phases, of which each begins with an allocation that only it can make: forward (a module is
// called), backward (the engine of autograd allocates), behind it (gradients are clipped, an optimizer steps).
//
//   gradient         the engine itself has allocated it, it is alive when the phase behind the backward pass, or the
//                    next forward pass, begins, and blocks of its size go on to come and go, or are as many weights or
//                    states: a library's workspace is left by the engine, too, and has neither. Where a program drops
//                    its gradients before that, those are told that have the sizes of known ones, one to one
//   optimizer_state  made by an optimizer's function for that; or by its step, alive when the next pass begins, and as
//                    large as a weight or a gradient
//   activation       it was there before the backward pass and was freed within it, between two allocations of the
//                    engine, and by no other code: only the graph lets go of something then
//   temporary        it begins and ends in one step and in one phase, in a backward pass between two allocations again
//   weight           a module was made with it, or has moved it; and what was there before the history and is never
//                    freed, where as many such blocks of a size are there as there are gradients of that size
//
// So events are gone through twice: the first time for the sizes. An address that is given out again ends the block
// that was there. Memory: 76 bytes for each block that was alive at once, and 23 to 46 for its address.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernel/place_index.h"
#include "record/record.h"

namespace memscope::kernel {

// Of a block, by its stack. What each means: Role of msmemscope/imports/torch_frames.py.
#define MEMSCOPE_STACK_ROLES(X) \
    X(NONE)                     \
    X(MAIN)                     \
    X(FORWARD)                  \
    X(BACKWARD)                 \
    X(IN_BACKWARD)              \
    X(CALLS_GRAD)               \
    X(BEHIND)                   \
    X(OPTIMIZER)                \
    X(STATE)                    \
    X(WEIGHT)                   \
    X(MOVED)                    \
    X(EMPTY)                    \
    X(OPTIMIZER_WITHIN)         \
    X(STATE_WITHIN)

enum class StackRole : u8 {
#define X(name) name,
    MEMSCOPE_STACK_ROLES(X)
#undef X
};

// What is told; name, its word.
#define MEMSCOPE_DEDUCED_OWNERS(X) \
    X(WEIGHT, "weight")            \
    X(GRADIENT, "gradient")        \
    X(STATE, "optimizer_state")    \
    X(ACTIVATION, "activation")    \
    X(TEMPORARY, "temporary")

enum class DeducedOwner : u8 {
#define X(name, word) name,
    MEMSCOPE_DEDUCED_OWNERS(X)
#undef X
        COUNT
};

// Columns of equal length of the events that matter: allocations, releases, and ranges, which begin a phase by their
// role alone. row: the number of each among the events that were given; place: device type << 24 | device << 8 | pool;
// role of a release: that of its own stack, if there is one; is_old: it was there before the history; labels: number of
// those that functions of frameworks give, 0: none.
#define MEMSCOPE_PHASE_EVENT_COLUMNS(X) \
    X(i64, row)                         \
    X(u8, kind)                         \
    X(i64, place)                       \
    X(u64, ptr)                         \
    X(i64, size)                        \
    X(i64, step)                        \
    X(u8, role)                         \
    X(u8, is_old)                       \
    X(u16, labels)

struct PhaseEvents {
    std::size_t rows = 0;
#define X(type, name) const type* name = nullptr;
    MEMSCOPE_PHASE_EVENT_COLUMNS(X)
#undef X
};

// Labels, each before the event `at` of those that were given. like: the event whose time and thread it has. owner:
// DeducedOwner.
#define MEMSCOPE_TOLD_OWNER_COLUMNS(X) \
    X(i64, at)                         \
    X(i64, like)                       \
    X(u64, ptr)                        \
    X(u8, owner)

struct ToldOwners {
#define X(type, name) std::vector<type> name;
    MEMSCOPE_TOLD_OWNER_COLUMNS(X)
#undef X
};

struct PlacedSize {
    i64 place;
    i64 size;
    bool operator==(const PlacedSize& other) const noexcept { return place == other.place && size == other.size; }
};
struct PlacedSizeHash {
    std::size_t operator()(const PlacedSize& one) const noexcept {
        return static_cast<std::size_t>(mix64(static_cast<u64>(one.size) * 31 + static_cast<u64>(one.place)));
    }
};
using SizeCounts = std::unordered_map<PlacedSize, u64, PlacedSizeHash>;
using SizeSet = std::unordered_set<PlacedSize, PlacedSizeHash>;

// Of what a process holds. gradients: and how many there are; weights: those of blocks from before the history that are
// weights; states: those that a block may have that an optimizer keeps.
struct TrainingSizes {
    SizeCounts gradients;
    SizeSet weights, states;
};

// Follows one process.
class TrainingPhases {
public:
    // is_named: by number of labels, whether they say what a block is.
    // known: from a first walk through the same events; null: this is it.
    TrainingPhases(std::vector<bool> is_named, const TrainingSizes* known);
    TrainingPhases(const TrainingPhases&) = delete;
    TrainingPhases& operator=(const TrainingPhases&) = delete;

    // How many numbers of labels there are.
    std::size_t numbers() const noexcept { return is_named_.size(); }

    // The next events, whose labels are below numbers().
    ToldOwners go(const PhaseEvents& events);
    // Behind the last event: what has been learned.
    TrainingSizes sizes() const;

    // Bytes allocated: of all, of those of which functions of frameworks say themselves what they are, and by owner.
    u64 all_bytes() const noexcept { return all_bytes_; }
    u64 named_bytes() const noexcept { return named_bytes_; }
    u64 bytes_of(DeducedOwner owner) const noexcept { return bytes_[static_cast<std::size_t>(owner)]; }

private:
    enum class Phase : u8 { NONE, FORWARD, BACKWARD, BEHIND };
    static constexpr u32 kNone = PlaceIndex::kNone;

    // run: the number of the stretch of one phase in which it began; row: its event's, among those of its piece.
    struct Block {
        u64 ptr = 0;
        i64 size = 0, place = 0, step = 0, row = 0;
        u64 run = 0, piece = 0;
        u32 before = kNone, behind = kNone;  // in the list of those that were made in this phase
        StackRole role = StackRole::NONE;
        bool is_live = false;
        bool is_old = false;
        bool is_known = false;  // a function of a framework says something of it
        bool is_named = false;  // and what it is, or that has been told here
        bool is_left = false;   // by the engine, behind its pass
        bool is_made = false;   // it stands in that list

        PlacedSize sized() const noexcept { return {place, size}; }
    };
    static_assert(sizeof(Block) == 72);
    struct Freed {
        Block block;
        i64 row, step;
        bool by_others;  // than the engine
    };
    struct Moment {
        i64 piece = -1, row = -1;
    };

    static Phase phase_of(StackRole role) noexcept;
    PlaceIndex& index_of(i64 place);
    Block& begin_block(i64 place, u64 ptr);
    void end_block(i64 place, u64 ptr, u32 at) noexcept;
    void list_made(u32 at) noexcept;
    void unlist_made(Block& block) noexcept;
    template <typename Visit>
    void each_made(Visit&& visit);

    void free(i64 row, i64 place, u64 ptr, i64 step, StackRole role);
    void go_on();
    void begin(Phase phase, i64 row);
    void end_backward(i64 row);
    void tell_temporary(Block& block, i64 row, i64 step);
    void tell(Block& block, DeducedOwner owner, i64 row);

    const std::vector<bool> is_named_;
    const bool is_first_;
    const TrainingSizes known_;
    u64 all_bytes_ = 0, named_bytes_ = 0;
    std::array<u64, static_cast<std::size_t>(DeducedOwner::COUNT)> bytes_{};

    std::unordered_map<i64, PlaceIndex> live_;  // by place: the number of the block at each address
    PlaceIndex* index_ = nullptr;               // the latest that was asked for
    i64 index_place_ = 0;
    std::vector<Block> blocks_;
    std::vector<u32> unused_;
    u32 first_made_ = kNone, last_made_ = kNone;  // by the engine in this pass, or by the optimizer; alive

    SizeCounts left_;    // by the engine, behind the pass that left most
    SizeSet returned_;   // of what it left
    SizeCounts shaped_;  // of weights and states
    Phase phase_ = Phase::NONE;
    u64 piece_ = 0, run_ = 0;
    bool calls_grad_ = false;   // in this backward pass
    Moment stepped_;            // an optimizer has worked within it
    std::vector<Freed> freed_;  // since the engine's last allocation
    ToldOwners told_;
};

}  // namespace memscope::kernel
