// The cutter over any bytes: it stays inside them and inside arrays of exactly the size it asked for, always gets on,
// and finds every record of a stream that holds nothing but records and holes.
#include "record/cutter.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include "fuzz_records.h"

using namespace memscope;

namespace {

[[noreturn]] void broken(const char* what) {
    fprintf(stderr, "cutter_fuzz: %s\n", what);
    abort();
}

// Cuts one batch into arrays that end where the cutter said; the sanitizer watches their ends.
CutSizes cut(const Records& records, u64 max_bytes) {
    const CutSizes sizes = measure(records, max_bytes);
    if (sizes.length > records.bytes) broken("consumed more than there is");
    std::vector<std::unique_ptr<char[]>> arrays;
    const auto array = [&](u64 bytes) {
        arrays.push_back(std::make_unique<char[]>(bytes));
        return static_cast<void*>(arrays.back().get());
    };
    CutColumns columns;
    columns.events.kind = static_cast<u8*>(array(sizes.events));
    columns.events.flags = static_cast<u8*>(array(sizes.events));
#define X(type, name) columns.events.name = static_cast<type*>(array(sizes.events * sizeof(type)));
    MEMSCOPE_EVENT_FIELDS(X)
#undef X
    columns.strings = {static_cast<u64*>(array(sizes.strings * 8ull)), static_cast<u32*>(array(sizes.strings * 4ull)),
                       static_cast<char*>(array(sizes.text_bytes))};
    columns.frames = {static_cast<u64*>(array(sizes.frames * 8ull)), static_cast<u64*>(array(sizes.frames * 8ull)),
                      static_cast<u64*>(array(sizes.frames * 8ull)), static_cast<u32*>(array(sizes.frames * 4ull)),
                      static_cast<u32*>(array(sizes.frames * 4ull))};
    columns.stacks = {static_cast<u64*>(array(sizes.stacks * 8ull)), static_cast<u32*>(array(sizes.stacks * 4ull)),
                      static_cast<u32*>(array(sizes.stacks * 4ull)), static_cast<u64*>(array(sizes.stack_frames * 8))};
    const u8* kinds = columns.events.kind;
    fill(records, sizes, columns);
    for (u32 i = 0; i < sizes.events; ++i)
        if (kinds[i] < kFirstEventKind || kinds[i] > kLastEventKind) broken("a kind that is none");
    return sizes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8* bytes, std::size_t count) {
    Input input(bytes, count);
    const u64 options = input.take(1);
    const u64 max_bytes = (options & 4) != 0 ? 1 + input.take(2) : ~0ull;
    const BuiltRecords built = build_records(input, 8192);
    // Exactly as long as it is: what reads beyond is caught.
    const std::unique_ptr<u64[]> exact(new u64[built.words.size()]);
    std::copy(built.words.begin(), built.words.end(), exact.get());
    Records records;
    records.data = reinterpret_cast<const char*>(exact.get());
    records.bytes = built.words.size() * 8;
    records.writer_gone = (options & 1) != 0;
    records.cut_off = (options & 2) != 0;
    if (whole_records(records, max_bytes) > records.bytes) broken("whole_records beyond the end");
    u64 events = 0, holes = 0;
    bool rests = false;
    while (records.bytes > 0) {
        const CutSizes sizes = cut(records, max_bytes);
        events += sizes.events;
        holes += sizes.holes;
        if (sizes.length == 0) {
            // The only reasons to wait: a hole of a living writer, a record cut off.
            if (records.writer_gone && !records.cut_off) broken("does not get on");
            rests = true;
            break;
        }
        records.data += sizes.length;
        records.bytes -= sizes.length;
    }
    if (built.honest && !rests && events != built.events) broken("an event is missing, or one too many");
    if (built.honest && !rests && built.holes == 0 && holes != 0) broken("a hole where there is none");
    return 0;
}
