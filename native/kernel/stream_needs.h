// The needs of one pool (pool_needs.h), by the streams that its blocks were allocated for: torch gives a block that is
// free to its own stream alone, so that each stream's blocks are a pool of their own. Of pools without streams, and
// where nobody told any, all is one.
//
//   whole    as long as nothing is judged and all blocks are of one stream, the pool's own levels (site_peaks.h) say
//   all
//            that there is to know, and nothing is kept here
//   untold   a block without a stream in a pool that has streams was allocated before anybody could tell: it counts to
//            the first stream that is told, on which such a program runs nearly always. What is allocated before the
//            observer of operators is there, weights first of all, is so part of the peak that it was part of
#pragma once

#include <cstddef>
#include <deque>

#include "kernel/pool_needs.h"
#include "kernel/site_peaks.h"

namespace memscope::kernel {

class StreamNeeds {
public:
    struct OfStream {
        u32 stream;  // as stream_of() has it
        i64 level;
        PoolNeeds needs;

        OfStream(u32 which, i64 now, i64 highest, NeedMemory& shared)
            : stream(which), level(now), needs(shared, highest) {}
    };

    bool is_whole() const noexcept { return streams_.empty(); }
    // To which blocks without a stream count; kNoStream while nobody has told any.
    u32 first() const noexcept { return first_; }
    bool is_of_first(u32 stream) const noexcept { return stream == first_ || stream == kNoStream; }
    // There was none.
    void tell_first(u32 stream) noexcept {
        first_ = stream;
        if (!is_whole()) streams_.front().stream = stream;
    }
    PoolNeeds* needs_of_first() noexcept { return is_whole() ? nullptr : &streams_.front().needs; }

    // From now on levels are kept here. pool: as its levels are, which are those of one stream.
    void divide(const PoolPeaks& pool, NeedMemory& shared) {
        streams_.emplace_back(first_, pool.level(), pool.highest(), shared);
    }

    // These are for pools that are not whole. A block begins. Its stream, which stays where it is; null: of further
    // ones than kMaxStreams nothing is known.
    OfStream* allocated(u32 stream, i64 size, NeedMemory& shared) {
        OfStream* one = find(stream);
        if (one == nullptr) {
            if (streams_.size() == kMaxStreams) return nullptr;
            one = latest_ = &streams_.emplace_back(stream, 0, 0, shared);
        }
        one->level = plus(one->level, size);
        return one;
    }
    void freed(u32 stream, i64 size) noexcept {
        if (OfStream* const one = find(stream)) one->level = minus(one->level, size);
    }

    const std::deque<OfStream>& streams() const noexcept { return streams_; }

private:
    OfStream* find(u32 stream) noexcept {
        if (stream == kNoStream) stream = first_;
        if (latest_ != nullptr && latest_->stream == stream) return latest_;
        for (OfStream& one : streams_)
            if (one.stream == stream) return latest_ = &one;
        return nullptr;
    }

    u32 first_ = kNoStream;
    std::deque<OfStream> streams_;
    OfStream* latest_ = nullptr;  // nearly always the next one's too
};

}  // namespace memscope::kernel
