// What a source says about a block, and what becomes of it: recorded while recording is on, remembered while it is
// off (REMEMBERING), so that the blocks that are alive when it comes on are known with their true times.
//
//   allocated while off            remembered here, and written nowhere
//   freed while off, remembered    forgotten: nobody ever hears of it
//   freed while off, recorded      FREE with flag SHADOW at its true time
//   start()                        every remembered block: MALLOC with flag SHADOW at its true time, no stacks
//
//   device selected no more        what was recorded or remembered before ends as above: what was recorded as allocated
//                                  is recorded as freed. Of what comes later neither beginning nor end is recorded.
//
// Address ranges that are reserved or mapped go the same way.
//
// Sources call these after a successful allocation and before a release, inside their Guard and only when
// is_watching().
#pragma once

#include "hook/recorder.h"

namespace memscope {

struct Block {
    Pool pool = Pool::NONE;
    DeviceType device_type = DeviceType::NONE;
    i16 device = kNoDevice;  // physical
    u8 flags = 0;            // Flag bits
    u64 ptr = 0;
    i64 size = 0;  // at a free: 0 when the allocator does not say
    i64 used = kUnknown;
    i64 total = kUnknown;
    u64 attr = 0;
    const char* name = nullptr;  // a literal: the function of the driver
    u32 stream = kNoStream;      // of an allocation: told_stream() of the one that it is for
};

void block_allocated(const Block& block) noexcept;
void block_freed(const Block& block) noexcept;

// A request for block.size bytes failed with `code`. Both stacks are taken whatever --call-stack says, 50 frames deep.
// Does nothing while recording is off.
void request_failed(const Block& block, u64 code) noexcept;

// The same for what begins and ends like a block without being one: RESERVE and UNRESERVE, MAP and UNMAP. `kind` is the
// kind that begins it.
void range_began(Kind kind, const Block& block) noexcept;
void range_ended(Kind kind, const Block& block) noexcept;

// A record that is neither MALLOC, FREE nor OOM but lies like one (SEGMENT_*), while recording.
void block_event(Kind kind, const Block& block) noexcept;

// Called by memscope_start() when recording has come on.
void promote_remembered_blocks() noexcept;
u64 remembered_blocks() noexcept;

}  // namespace memscope
