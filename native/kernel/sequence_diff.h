// What was removed, inserted and replaced between two sequences of operators, launches or anything that has a number.
//
// In: two arrays of numbers, equal where the elements are. Out: the stretches in which the sequences differ, ascending
// and apart from each other; what lies between two stretches is the same in both, element by element.
//
//   exact    Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), in the form that needs linear space: the
//            middle of a shortest path is found from both ends, then those of its halves. Beginnings and ends that are
//            the same are cut off first. Nothing is recursive: what is left to do stands in a list.
//   bounded  A search that costs more than its share of `most_work` is given up, and the stretch is cut at anchors:
//            elements, or else windows of kWindow elements, that occur once in it on either side, as many as stand in
//            the same order in both (patience). Without any, it is cut where the search had come furthest, if one in
//            four elements up to there was the same. Else the two have nothing in common that could be found, and the
//            stretch is one replacement, which is said (`given_up`). What is cut thus is a valid alignment, no
//            shortest one: `is_shortest` is false.
//
// Time: a step of the search or the comparison of a pair of elements is one unit of work; at most some most_work + 64
// (n + m) of them, most_work being kMostDiffWork or kDiffWorkPerElement (n + m), whichever is more, where it is not
// given. No search takes more than a part of what is left, or one of two long sequences would take it all. Memory: 8
// bytes for each diagonal that a path comes to, 16 for each number, 4 an element where they are not dense, and 24 an
// element of a stretch in which anchors are looked for.
#pragma once

#include <cstddef>
#include <vector>

#include "record/record.h"

namespace memscope::kernel {

// a_begin, a_end, b_begin, b_end: rows of the two sequences. given_up: not searched to the end.
#define MEMSCOPE_HUNK_COLUMNS(X) \
    X(u64, a_begin)              \
    X(u64, a_end)                \
    X(u64, b_begin)              \
    X(u64, b_end)                \
    X(u8, given_up)

struct HunkTable {
#define X(type, name) std::vector<type> name;
    MEMSCOPE_HUNK_COLUMNS(X)
#undef X
};

struct SequenceDiff {
    HunkTable hunks;
    bool is_shortest = true;
    u64 work = 0;
};

constexpr u64 kMostDiffWork = u64{1} << 32, kDiffWorkPerElement = 256;

constexpr u64 most_diff_work(std::size_t n, std::size_t m) noexcept {
    return kMostDiffWork > kDiffWorkPerElement * (n + m) ? kMostDiffWork : kDiffWorkPerElement * (n + m);
}

// Sequences of 2^30 elements at most; std::length_error for longer ones. The first takes numbers that are dense, and
// std::invalid_argument tells of one above n + m.
SequenceDiff diff_sequences(const u32* a, std::size_t n, const u32* b, std::size_t m, u64 most_work);
SequenceDiff diff_sequences(const u64* a, std::size_t n, const u64* b, std::size_t m, u64 most_work);

}  // namespace memscope::kernel
