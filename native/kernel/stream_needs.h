// The needs of one pool (pool_needs.h), by the streams that its blocks were allocated for: torch gives a block that is
// free to its own stream alone, so that each stream's blocks are a pool of their own. Of pools without streams, and
// where nobody told any, all is one.
#pragma once

#include <deque>

#include "kernel/pool_needs.h"

namespace memscope::kernel {

class StreamNeeds {
public:
    struct OfStream {
        u32 stream;  // as stream_of() has it
        i64 level = 0;
        PoolNeeds needs;

        explicit OfStream(u32 which) : stream(which) {}
    };

    // Stays where it is. null: of further streams than kMaxStreams nothing is known.
    OfStream* of(u32 stream) {
        if (latest_ != nullptr && latest_->stream == stream) return latest_;
        for (OfStream& one : streams_)
            if (one.stream == stream) return latest_ = &one;
        if (streams_.size() == kMaxStreams) return nullptr;
        return latest_ = &streams_.emplace_back(stream);
    }

    void allocated(u32 stream, i64 size) {
        if (OfStream* one = of(stream)) one->level = plus(one->level, size);
    }
    void freed(u32 stream, i64 size) {
        if (OfStream* one = of(stream)) one->level = minus(one->level, size);
    }

    const std::deque<OfStream>& streams() const noexcept { return streams_; }

private:
    std::deque<OfStream> streams_;
    OfStream* latest_ = nullptr;  // nearly always the next one's too
};

}  // namespace memscope::kernel
