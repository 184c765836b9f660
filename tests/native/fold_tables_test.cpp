// The tables of the folds against those of the standard library under random use: live blocks, what is known of them by
// their numbers, and their addresses in order.
#include <map>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "kernel/address_order.h"
#include "kernel/block_map.h"
#include "kernel/number_map.h"
#include "kernel/same_size.h"

using namespace memscope;
using namespace memscope::kernel;

namespace {

constexpr int kTurns = 20'000;

// What place_index.h multiplies by, the other way round: keys that are looked for in neighbouring places.
u64 crowded(u64 number) {
    constexpr u64 kFactor = 0x9E3779B97F4A7C15ull;
    u64 inverse = 1;
    for (int bits = 1; bits < 64; bits *= 2) inverse *= 2 - kFactor * inverse;
    return number * inverse;
}

u64 key_of_sort(int sort, u64 random) {
    switch (sort) {
        case 0:
            return 1 + random % 3000;
        case 1:
            return (1 + random % 3000) << 21;
        case 2:
            return crowded(1 + random % 400);  // all at the first place
        default:
            return crowded(~u64{0} - random % 400);  // round the end
    }
}

}  // namespace

CASE(numbers_are_a_map) {
    for (int sort = 0; sort < 4; ++sort) {
        std::mt19937_64 chance(static_cast<unsigned>(sort));
        NumberMap<u64> map;
        std::map<u64, u64> model;
        for (u64 turn = 0; turn < kTurns; ++turn) {
            const u64 key = key_of_sort(sort, chance());
            const bool grows = turn / 4000 % 2 == 0;
            if (chance() % 3 < (grows ? 2u : 1u)) {
                map.obtain(key) = turn;
                model[key] = turn;
            } else {
                map.erase(key);
                model.erase(key);
            }
            if (chance() % 3000 == 0) map.shrink();
            if (chance() % 9000 == 0) {
                map = {};
                model.clear();
            }
            const u64 other = key_of_sort(sort, chance());
            const auto known = model.find(other);
            const u64* const found = map.find(other);
            CHECK_EQUAL(found != nullptr, known != model.end());
            if (found != nullptr) CHECK_EQUAL(*found, known->second);
            CHECK_EQUAL(map.size(), model.size());
        }
        std::map<u64, u64> all;
        map.each([&all](u64 number, u64 value) { CHECK(all.emplace(number, value).second); });
        CHECK(all == model);
    }
}

CASE(blocks_are_a_map) {
    std::mt19937_64 chance(1);
    BlockMap map;
    std::map<u64, u64> model;
    for (u64 turn = 1; turn < 3 * kTurns; ++turn) {
        u64 ptr = chance() % 4000 << 9;
        if (chance() % 7 == 0) ptr |= kHandleBit;
        if (chance() % 50 == 0) ptr = ~u64{0};
        const auto known = model.find(ptr);
        if (chance() % (turn / 6000 % 2 == 0 ? 2 : 4) == 0) {
            Block& block = map.claim(ptr);
            CHECK_EQUAL(block.id, known == model.end() ? 0 : known->second);
            block.ptr = ptr;
            block.life = static_cast<u32>(chance());
            model[ptr] = block.id = turn;
        } else {
            const BlockMap::Ending ending = map.find_ending(ptr);
            CHECK(ending.block == map.find(ptr));
            CHECK_EQUAL(ending.block != nullptr, known != model.end());
            if (ending.block != nullptr) {
                CHECK_EQUAL(ending.block->id, known->second);
                map.erase(ending);
                model.erase(known);
            }
        }
        if (map.size() != 0)
            if (const Block* const glanced = map.glance(ptr)) CHECK_EQUAL(glanced->id, model.at(ptr));
        if (chance() % 5000 == 0) map.shrink();
        CHECK_EQUAL(map.size(), model.size());
    }
    std::size_t count = 0;
    map.each([&](const Block& block) {
        CHECK_EQUAL(model.at(block.ptr), block.id);
        count += 1;
    });
    CHECK_EQUAL(count, model.size());
}

CASE(addresses_are_in_order) {
    for (int sort = 0; sort < 4; ++sort) {
        std::mt19937_64 chance(static_cast<unsigned>(sort));
        AddressOrder order;
        std::set<u64> model;
        u64 ascending = u64{1} << 20, descending = u64{1} << 40;
        for (u64 turn = 0; turn < kTurns; ++turn) {
            const u64 of_sort[] = {chance() % 20'000, ascending += 512, descending -= 512, chance()};
            const bool grows = turn / 4000 % 2 == 0;
            if (model.empty() || chance() % 3 < (grows ? 2u : 1u)) {
                if (model.insert(of_sort[sort]).second) order.insert(of_sort[sort]);
            } else {
                auto one = model.lower_bound(sort == 1 ? 0 : of_sort[sort] ^ chance() % 65536);
                if (one == model.end()) one = model.begin();
                order.erase(*one);
                model.erase(one);
            }
            const u64 asked = of_sort[sort] ^ chance() % 65536;
            const auto behind = model.upper_bound(asked);
            const u64* const found = order.at_or_before(asked);
            CHECK_EQUAL(found != nullptr, behind != model.begin());
            if (found != nullptr) CHECK_EQUAL(*found, *std::prev(behind));
        }
        while (!model.empty()) {
            order.erase(*model.begin());
            model.erase(model.begin());
        }
        CHECK(order.at_or_before(~u64{0}) == nullptr);
    }
}

CASE(sizes_are_bounded_and_those_that_go_on_stay) {
    SameSize sizes;
    u64 latest = 0;
    for (u64 block = 1; block < 4 * kMaxSizes; ++block) {
        sizes.begin(1, 2 * block, static_cast<i64>(block) * kSizeUnit, 2 * block, 1, 1);
        CHECK(sizes.sizes() <= kMaxSizes);
        if (block % 1000 == 1) {
            latest = 2 * block + 1;
            sizes.begin(2, latest, kSizeUnit, latest, 1, 1);
        }
        if (block % 1000 != 0) continue;
        const SameSize::Birth* const other = sizes.end(2, latest - 1, kSizeUnit, latest - 1, 2 * block + 2);
        CHECK(other != nullptr);
        CHECK_EQUAL(other->id, latest);
    }
    CHECK(sizes.end(1, 0, kSizeUnit, 1, ~u64{0}) == nullptr);  // that made room
}

int main(int argc, char** argv) { return check::run(argc, argv); }
