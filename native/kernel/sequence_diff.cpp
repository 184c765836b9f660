#include "kernel/sequence_diff.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace memscope::kernel {

namespace {

constexpr std::size_t kMostElements = std::size_t{1} << 30;
constexpr u64 kWorkPerElement = 512;  // of a stretch; halved each time that a search is given up
constexpr u64 kLeastWork = 1 << 16;   // of a search
constexpr u64 kShareOfRest = 8;       // a search costs no more than one in so many of the units that are left
constexpr i64 kWindow = 32;           // elements that make an anchor together
constexpr i64 kLeastShare = 4;        // one in so many elements must be the same where a search is gone on with
constexpr i64 kNowhere = -1;
constexpr i64 kNever = i64{1} << 40;  // more than there are

// A stretch of both sequences; per_element: what a search in it may cost; looked: how many elements the part of the
// sequences had in which anchors were looked for in vain.
struct Stretch {
    i64 a, a_end, b, b_end;
    u64 per_element;
    i64 looked;

    i64 n() const noexcept { return a_end - a; }
    i64 m() const noexcept { return b_end - b; }
    bool is_empty() const noexcept { return n() == 0 && m() == 0; }
};

// A place in a stretch, counted from its beginning: so many elements of a and of b lie before it.
struct Cut {
    i64 x = 0, y = 0;
};

// How far a path of `edits` edits comes on each diagonal x - y, from one end of a stretch.
class Frontier {
public:
    void begin(i64 n, i64 m) {
        n_ = n;
        m_ = m;
        if (const auto size = static_cast<std::size_t>(n + m + 3); size_ < size) {
            // Pages that no path comes to are never touched, and take no memory.
            reach_.reset(static_cast<i32*>(std::calloc(size, sizeof(i32))));
            if (reach_ == nullptr) throw std::bad_alloc();
            size_ = size;
        }
        set(-1, kNowhere);
        set(0, 0);
        set(1, kNowhere);
    }

    i64 at(i64 diagonal) const noexcept { return reach_[static_cast<std::size_t>(diagonal + m_ + 1)]; }
    void set(i64 diagonal, i64 x) noexcept {
        reach_[static_cast<std::size_t>(diagonal + m_ + 1)] = static_cast<i32>(x);
    }

    // The diagonals that `edits` edits can end on lie from first() to last(), two apart.
    i64 first(i64 edits) const noexcept { return edits <= m_ ? -edits : -m_ + ((edits - m_) & 1); }
    i64 last(i64 edits) const noexcept { return edits <= n_ ? edits : n_ - ((edits - n_) & 1); }

    // Diagonals that the next edit reaches for the first time.
    void widen(i64 edits) noexcept {
        if (edits + 1 <= m_ + 1) set(-edits - 1, kNowhere);
        if (edits + 1 <= n_ + 1) set(edits + 1, kNowhere);
    }

    // The furthest start of a run of equal elements on a diagonal, one edit behind its neighbours.
    i64 step(i64 diagonal) const noexcept {
        i64 x = at(diagonal);
        if (const i64 left = at(diagonal - 1); left != kNowhere && left < n_) x = std::max(x, left + 1);
        if (const i64 above = at(diagonal + 1); above != kNowhere && above - diagonal <= m_) x = std::max(x, above);
        return x;
    }

    // The place that lies furthest from the end it began at.
    Cut furthest(i64 edits) const noexcept {
        Cut best;
        for (i64 diagonal = first(edits); diagonal <= last(edits); diagonal += 2) {
            const i64 x = at(diagonal);
            if (x != kNowhere && 2 * x - diagonal > best.x + best.y) best = {x, x - diagonal};
        }
        return best;
    }

private:
    struct Free {
        void operator()(i32* memory) const noexcept { std::free(memory); }
    };

    i64 n_ = 0, m_ = 0;
    std::size_t size_ = 0;
    std::unique_ptr<i32[], Free> reach_;
};

class Differ {
public:
    // Numbers below `symbols`.
    Differ(const u32* a, std::size_t n, const u32* b, std::size_t m, std::size_t symbols, u64 most_work)
        : most_work_(most_work), symbols_(symbols), a_(a), b_(b), n_(n), m_(m) {
        if (n > kMostElements || m > kMostElements) throw std::length_error("a sequence has more than 2^30 elements");
    }

    SequenceDiff run() {
        todo_.push_back({0, static_cast<i64>(n_), 0, static_cast<i64>(m_), kWorkPerElement, kNever});
        while (!todo_.empty()) {
            Stretch stretch = todo_.back();
            todo_.pop_back();
            strip(stretch);
            if (stretch.is_empty()) continue;
            if (stretch.n() == 0 || stretch.m() == 0)
                add(stretch, false);
            else
                divide(stretch);
        }
        found_.work = work_;
        return std::move(found_);
    }

private:
    u32 left(i64 at) const noexcept { return a_[at]; }
    u32 right(i64 at) const noexcept { return b_[at]; }

    void strip(Stretch& stretch) noexcept {
        const i64 before = stretch.n() + stretch.m();
        while (stretch.n() != 0 && stretch.m() != 0 && left(stretch.a) == right(stretch.b)) {
            stretch.a += 1;
            stretch.b += 1;
        }
        while (stretch.n() != 0 && stretch.m() != 0 && left(stretch.a_end - 1) == right(stretch.b_end - 1)) {
            stretch.a_end -= 1;
            stretch.b_end -= 1;
        }
        work_ += static_cast<u64>(before - stretch.n() - stretch.m());
    }

    // Stretches come in ascending order: those that touch are one.
    void add(const Stretch& stretch, bool given_up) {
        HunkTable& hunks = found_.hunks;
        const auto a = static_cast<u64>(stretch.a), b = static_cast<u64>(stretch.b);
        if (!hunks.a_end.empty() && hunks.a_end.back() == a && hunks.b_end.back() == b) {
            hunks.a_end.back() = static_cast<u64>(stretch.a_end);
            hunks.b_end.back() = static_cast<u64>(stretch.b_end);
            hunks.given_up.back() |= static_cast<u8>(given_up);
            return;
        }
        hunks.a_begin.push_back(a);
        hunks.a_end.push_back(static_cast<u64>(stretch.a_end));
        hunks.b_begin.push_back(b);
        hunks.b_end.push_back(static_cast<u64>(stretch.b_end));
        hunks.given_up.push_back(given_up);
    }

    void later(const Stretch& stretch) {
        if (!stretch.is_empty()) todo_.push_back(stretch);
    }

    // The later part waits below the earlier one.
    void cut(const Stretch& stretch, Cut at, u64 before, u64 behind, i64 looked) {
        later({stretch.a + at.x, stretch.a_end, stretch.b + at.y, stretch.b_end, behind, looked});
        later({stretch.a, stretch.a + at.x, stretch.b, stretch.b + at.y, before, looked});
    }

    void divide(const Stretch& stretch) {
        const i64 size = stretch.n() + stretch.m();
        const u64 left_over = most_work_ > work_ ? most_work_ - work_ : 0;
        // Of two long sequences one search would take all there is, and nothing would be known behind it.
        const u64 most = left_over > kShareOfRest * kLeastWork ? left_over / kShareOfRest : left_over;
        const u64 share = std::min(std::max(stretch.per_element * static_cast<u64>(size), kLeastWork), most);
        const u64 same = stretch.per_element, less = same / 2;
        Cut middle;
        i64 edits = 0;
        if (search(stretch, share, middle, edits)) return cut(stretch, middle, same, same, stretch.looked);
        found_.is_shortest = false;
        if (left_over == 0) return add(stretch, true);
        i64 looked = stretch.looked;
        // Each time in half of the elements or less: else a long rest would be looked through again and again.
        if (2 * size <= looked) {
            if (cut_at_anchors(stretch)) return;
            looked = size;
        }
        // A path of `edits` edits that comes to x + y has met (x + y - edits) / 2 pairs of equal elements.
        const Cut from_begin = forward_.furthest(edits), from_end = backward_.furthest(edits);
        const bool is_begin = from_begin.x + from_begin.y >= from_end.x + from_end.y;
        const Cut better = is_begin ? from_begin : from_end;
        const i64 passed = better.x + better.y;
        if (kLeastShare * (passed - edits) < passed) return add(stretch, true);
        // What the search has gone through is known to be cheap enough.
        if (is_begin)
            cut(stretch, better, same * 4, less, looked);
        else
            cut(stretch, {stretch.n() - better.x, stretch.m() - better.y}, less, same * 4, looked);
    }

    // The middle of a shortest path. False: it costs more; `edits` of each side were looked through.
    bool search(const Stretch& stretch, u64 share, Cut& middle, i64& edits) {
        const i64 n = stretch.n(), m = stretch.m(), apart = n - m;
        const u64 stop = work_ + share;
        forward_.begin(n, m);
        backward_.begin(n, m);
        for (edits = 1;; ++edits) {
            if (work_ >= stop) {
                edits -= 1;
                return false;
            }
            forward_.widen(edits);
            for (i64 diagonal = forward_.first(edits); diagonal <= forward_.last(edits); diagonal += 2) {
                i64 x = forward_.step(diagonal), y = x - diagonal;
                const i64 from = x;
                if (x != kNowhere)
                    while (x < n && y < m && left(stretch.a + x) == right(stretch.b + y)) ++x, ++y;
                forward_.set(diagonal, x);
                work_ += static_cast<u64>(1 + x - from);
                const i64 other = apart - diagonal;
                if ((apart & 1) != 0 && x != kNowhere && other >= 1 - edits && other <= edits - 1 &&
                    reached(backward_, other, edits - 1) && x + backward_.at(other) >= n) {
                    middle = {x, y};
                    return true;
                }
            }
            backward_.widen(edits);
            for (i64 diagonal = backward_.first(edits); diagonal <= backward_.last(edits); diagonal += 2) {
                i64 x = backward_.step(diagonal), y = x - diagonal;
                const i64 from = x;
                if (x != kNowhere)
                    while (x < n && y < m && left(stretch.a_end - 1 - x) == right(stretch.b_end - 1 - y)) ++x, ++y;
                backward_.set(diagonal, x);
                work_ += static_cast<u64>(1 + x - from);
                const i64 other = apart - diagonal;
                if ((apart & 1) == 0 && x != kNowhere && other >= -edits && other <= edits &&
                    reached(forward_, other, edits) && x + forward_.at(other) >= n) {
                    middle = {n - x, m - y};
                    return true;
                }
            }
        }
    }

    static bool reached(const Frontier& frontier, i64 diagonal, i64 edits) noexcept {
        return diagonal >= frontier.first(edits) && diagonal <= frontier.last(edits) &&
               frontier.at(diagonal) != kNowhere;
    }

    // Cuts around the anchors; false: there are none.
    bool cut_at_anchors(const Stretch& stretch) {
        std::vector<std::pair<i64, i64>> pairs = unique_elements(stretch);
        if (pairs.empty()) pairs = unique_windows(stretch);
        work_ += 4 * static_cast<u64>(stretch.n() + stretch.m());
        if (pairs.empty()) return false;
        const std::vector<std::size_t> kept = longest_ascending(pairs);
        // From the last to the first, so that the first is worked on next.
        i64 a_end = stretch.a_end, b_end = stretch.b_end;
        for (auto at = kept.rbegin(); at != kept.rend(); ++at) {
            const auto [a, b] = pairs[*at];
            later({a + 1, a_end, b + 1, b_end, stretch.per_element / 2, kNever});
            a_end = a;
            b_end = b;
        }
        later({stretch.a, a_end, stretch.b, b_end, stretch.per_element / 2, kNever});
        return true;
    }

    // Places of the elements that occur once on either side, in the order of a.
    std::vector<std::pair<i64, i64>> unique_elements(const Stretch& stretch) {
        constexpr i64 kOften = -2;
        places_.resize(symbols_, {kNowhere, kNowhere});
        const auto note = [](i64& place, i64 at) { place = place == kNowhere ? at : kOften; };
        for (i64 at = stretch.a; at < stretch.a_end; ++at) note(places_[left(at)].first, at);
        for (i64 at = stretch.b; at < stretch.b_end; ++at) note(places_[right(at)].second, at);
        std::vector<std::pair<i64, i64>> found;
        for (i64 at = stretch.a; at < stretch.a_end; ++at)
            if (const auto place = places_[left(at)]; place.first == at && place.second >= 0) found.push_back(place);
        // As it was, by what was touched alone: there may be many elements, and many short stretches.
        for (i64 at = stretch.a; at < stretch.a_end; ++at) places_[left(at)] = {kNowhere, kNowhere};
        for (i64 at = stretch.b; at < stretch.b_end; ++at) places_[right(at)] = {kNowhere, kNowhere};
        return found;
    }

    // The same of the beginnings of windows.
    std::vector<std::pair<i64, i64>> unique_windows(const Stretch& stretch) {
        if (stretch.n() < kWindow || stretch.m() < kWindow) return {};
        struct Seen {
            i64 a = kNowhere, b = kNowhere;
            u32 in_a = 0, in_b = 0;
        };
        std::unordered_map<u64, Seen> seen;
        windows(a_, stretch.a, stretch.a_end, [&seen](u64 hash, i64 at) {
            Seen& one = seen[hash];
            one.a = at;
            one.in_a += 1;
        });
        windows(b_, stretch.b, stretch.b_end, [&seen](u64 hash, i64 at) {
            const auto one = seen.find(hash);
            if (one == seen.end()) return;
            one->second.b = at;
            one->second.in_b += 1;
        });
        std::vector<std::pair<i64, i64>> found;
        for (const auto& [hash, one] : seen)
            if (one.in_a == 1 && one.in_b == 1 && is_same_window(one.a, one.b)) found.emplace_back(one.a, one.b);
        std::sort(found.begin(), found.end());
        return found;
    }

    bool is_same_window(i64 a, i64 b) const noexcept {
        for (i64 at = 0; at < kWindow; ++at)
            if (left(a + at) != right(b + at)) return false;
        return true;
    }

    // A rolling hash: sum of element * factor^(distance from the end), modulo 2^64.
    template <typename Take>
    static void windows(const u32* of, i64 begin, i64 end, Take take) {
        constexpr u64 kFactor = 0x9E3779B97F4A7C15ull;
        const auto value = [of](i64 at) { return (of[at] + u64{1}) * 0xD6E8FEB86659FD93ull; };
        u64 top = 1, hash = 0;
        for (i64 at = 0; at < kWindow; ++at) {
            hash = hash * kFactor + value(begin + at);
            top *= kFactor;
        }
        for (i64 at = begin;; ++at) {
            take(hash, at);
            if (at + kWindow >= end) return;
            hash = hash * kFactor + value(at + kWindow) - value(at) * top;
        }
    }

    // Of pairs in the order of their first numbers as many as possible whose second ones ascend, too.
    static std::vector<std::size_t> longest_ascending(const std::vector<std::pair<i64, i64>>& pairs) {
        constexpr std::size_t kNone = ~std::size_t{0};
        std::vector<std::size_t> ends, before(pairs.size(), kNone);
        for (std::size_t at = 0; at < pairs.size(); ++at) {
            const auto place =
                std::lower_bound(ends.begin(), ends.end(), pairs[at].second,
                                 [&pairs](std::size_t one, i64 second) { return pairs[one].second < second; });
            if (place != ends.begin()) before[at] = *(place - 1);
            if (place == ends.end())
                ends.push_back(at);
            else
                *place = at;
        }
        std::vector<std::size_t> kept;
        for (std::size_t at = ends.empty() ? kNone : ends.back(); at != kNone; at = before[at]) kept.push_back(at);
        std::reverse(kept.begin(), kept.end());
        return kept;
    }

    const u64 most_work_;
    u64 work_ = 0;
    const std::size_t symbols_;
    const u32* const a_;
    const u32* const b_;
    const std::size_t n_, m_;
    std::vector<std::pair<i64, i64>> places_;
    std::vector<Stretch> todo_;
    Frontier forward_, backward_;
    SequenceDiff found_;
};

}  // namespace

SequenceDiff diff_sequences(const u32* a, std::size_t n, const u32* b, std::size_t m, u64 most_work) {
    u32 largest = 0;
    for (std::size_t at = 0; at < n; ++at) largest = std::max(largest, a[at]);
    for (std::size_t at = 0; at < m; ++at) largest = std::max(largest, b[at]);
    if (largest > n + m)
        throw std::invalid_argument("a number is larger than there are elements: dense ones are needed");
    return Differ(a, n, b, m, std::size_t{largest} + 1, most_work).run();
}

SequenceDiff diff_sequences(const u64* a, std::size_t n, const u64* b, std::size_t m, u64 most_work) {
    std::unordered_map<u64, u32> known;
    std::vector<u32> dense_a, dense_b;
    for (auto [from, count, to] : {std::tuple(a, n, &dense_a), std::tuple(b, m, &dense_b)}) {
        if (count > kMostElements) throw std::length_error("a sequence has more than 2^30 elements");
        to->resize(count);
        for (std::size_t at = 0; at < count; ++at)
            (*to)[at] = known.try_emplace(from[at], static_cast<u32>(known.size())).first->second;
    }
    const std::size_t symbols = known.size();
    known = {};
    return Differ(dense_a.data(), n, dense_b.data(), m, symbols, most_work).run();
}

}  // namespace memscope::kernel
