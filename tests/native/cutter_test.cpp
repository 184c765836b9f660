// The cutter where a Python test cannot reach: damage between good records. (What a batch looks like is tested from
// Python, through the module.)
#include "record/cutter.h"

#include "check.h"
#include "fuzz_records.h"
#include "record/ring.h"

using namespace memscope;

namespace {

std::vector<u64> events(u32 count) {
    std::vector<u64> words;
    for (u32 i = 0; i < count; ++i) {
        words.push_back(header_word(sizeof(EventRecord), static_cast<u32>(Kind::MALLOC), 0));
        words.insert(words.end(), sizeof(EventRecord) / 8 - 1, i);
    }
    return words;
}

Records all_of(const std::vector<u64>& words) {
    Records records;
    records.data = reinterpret_cast<const char*>(words.data());
    records.bytes = words.size() * 8;
    return records;
}

constexpr u64 kNoise = 0x1234567812345678;

}  // namespace

CASE(what_lies_between_two_damaged_places_is_found) {
    std::vector<u64> words = events(3);
    words.push_back(kNoise);
    const std::vector<u64> more = events(kChainLinks + 5);
    words.insert(words.end(), more.begin(), more.end());
    words.push_back(kNoise);
    const std::vector<u64> last = events(2);
    words.insert(words.end(), last.begin(), last.end());
    const CutSizes sizes = measure(all_of(words), ~0ull);
    CHECK_EQUAL(sizes.events, 3 + kChainLinks + 5 + 2);
    CHECK_EQUAL(sizes.invalid, 2u);
    CHECK_EQUAL(sizes.length, words.size() * 8);
}

CASE(a_full_ring_with_damage_at_both_ends_is_searched_once) {
    // Quadratic work would be 15 billion steps.
    std::vector<u64> words(1, kNoise);
    const std::vector<u64> more = events(static_cast<u32>(kDefaultRingBytes / sizeof(EventRecord)));
    words.insert(words.end(), more.begin(), more.end());
    words.push_back(kNoise);
    const CutSizes sizes = measure(all_of(words), ~0ull);
    CHECK_EQUAL(sizes.events, kDefaultRingBytes / sizeof(EventRecord));
    CHECK_EQUAL(sizes.invalid, 2u);
}

CASE(a_hole_of_a_living_writer_ends_the_batch) {
    std::vector<u64> words = events(3);
    words.insert(words.end(), 12, 0);
    const std::vector<u64> more = events(4);
    words.insert(words.end(), more.begin(), more.end());
    Records records = all_of(words);
    CHECK_EQUAL(measure(records, ~0ull).events, 3u);
    CHECK_EQUAL(measure(records, ~0ull).length, 3 * sizeof(EventRecord));
    records.writer_gone = true;
    CHECK_EQUAL(measure(records, ~0ull).events, 7u);
    CHECK_EQUAL(measure(records, ~0ull).holes, 1u);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
