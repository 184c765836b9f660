// A ring whose file, or whose shared header in mid-use, holds anything: it is refused, or every function stays in the
// mapping and comes to an end.
#include <fcntl.h>
#include <cstdio>
#include "fuzz_records.h"
#include "record/ring.h"
#include "ring_fixture.h"

using namespace memscope;

namespace {

constexpr u64 kBytes = 65536;
volatile char sink;

[[noreturn]] void broken(const char* what) {
    fprintf(stderr, "ring_fuzz: %s\n", what);
    abort();
}

void put(int fd, u64 offset, const void* bytes, std::size_t count) {
    if (pwrite(fd, bytes, count, static_cast<off_t>(offset)) < 0) broken("cannot write");
}

void damage(Input& input, RingHeader& header) {
    std::atomic<u64>* counters[] = {&header.head,      &header.acked, &header.freed,   &header.wait_mark,
                                    &header.drop_from, &header.limit, &header.retry_at};
    const u64 values[] = {input.take(8), input.take(2) * 8, ~7ull, 1ull << 62, 0, kBytes, kBytes + 8};
    counters[input.take(1) % 7]->store(values[input.take(1) % 7]);
    header.dropping.store(static_cast<u32>(input.take(1)) % 4);
    header.lost[input.take(1) % kKindSlots].store(input.take(1));
}

void use_as_agent(Ring& ring) {
    u64 at = ring.header->acked.load();
    const u64 head = ring.header->head.load();
    for (u64 steps = 0; at < head && steps < kBytes; ++steps) {
        const RecordHeader record = ring.peek(at);
        if (is_valid(record) && record.length <= head - at) {
            const char* place = ring.data + (at & (ring.capacity() - 1));
            for (u32 i = 0; i < record.length; ++i) sink = place[i];
            at += record.length;
        } else {
            const u64 next = ring.next_committed(at + 8);
            if (next < at) broken("next_committed went back");
            at = next;
        }
    }
    ring.release(at);
}

void use_as_writer(Ring& ring, Input& input) {
    for (u32 i = 0; i < 20; ++i) {
        write_event(ring, Kind::MALLOC, 1, i);
        write_text(ring, input.take(1));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8* bytes, std::size_t count) {
    static const Scratch scratch;
    static const std::string path = [] {
        Ring ring;
        if (create_ring(ring, scratch.file("a.ring"), kBytes) != 0) broken("cannot make a ring");
        ring.unmap();
        return scratch.file("a.ring");
    }();
    Input input(bytes, count);
    const u64 options = input.take(1);
    RingHeader header = {};
    memcpy(header.magic, kRingMagic, sizeof kRingMagic);
    header.version = kRingVersion;
    header.limit = kBytes;
    header.grows = static_cast<u32>(options >> 4 & 1);
    header.header_bytes = kRingHeaderBytes;
    header.capacity = kBytes;
    const u64 lap = (options & 1) != 0 ? input.take(2) * 8 : 0;
    if ((options & 2) != 0) header.capacity = input.take(8);
    if ((options & 4) != 0) header.header_bytes = static_cast<u32>(input.take(4));
    if ((options & 8) != 0) damage(input, header);
    std::vector<u64> data = build_records(input, kBytes / 8).words;
    data.resize(kBytes / 8);
    if ((options & 8) == 0) {
        header.freed = header.acked = lap;
        header.head = header.limit = lap + kBytes;
    }
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    put(fd, 0, static_cast<void*>(&header), sizeof header);
    const u64 split = lap % kBytes;
    put(fd, kRingHeaderBytes + split, data.data(), kBytes - split);
    put(fd, kRingHeaderBytes, data.data() + (kBytes - split) / 8, split);
    close(fd);

    Ring ring;
    if (ring.open(path.c_str(), true) != 0) return 0;
    ring.wait_ns = 0;
    ring.recover();
    use_as_agent(ring);
    damage(input, *ring.header);
    use_as_agent(ring);
    damage(input, *ring.header);
    use_as_writer(ring, input);
    ring.recover();
    ring.unmap();
    return 0;
}
