// The event vocabulary: every kind of record that may stand in a ring, and its layout.
//
// This header is the only place where a kind, a pool, a flag or a field is declared. Python's mirror,
// msmemscope/vocabulary.py, is generated from it (tools/generate_vocabulary.py; `make check` fails when the
// two differ), and so are the columns of a batch and of the events table.
//
// All values are little-endian. Every record starts on a multiple of 8 bytes with a RecordHeader, and its
// length is a multiple of 8, so a reader finds the next record without knowing the kind. There are two
// families:
//   * events: one fixed layout, EventRecord, whatever the kind; what a field means for a kind is said in the
//     table at MEMSCOPE_EVENT_KINDS. A field that a kind does not use is 0 (used and total: -1, unknown).
//   * definitions: STRING, FRAME, STACK. Ids are 64-bit hashes of the content, so the same call stack has the
//     same id in every process of the job and nothing has to be renamed when ranks are merged. Id 0 means
//     "none". A definition stands before its first use in the same ring.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memscope {

inline constexpr std::uint16_t kRecordVersion = 0x4D01;  // 'M', layout 1; also the mark recovery looks for

// Kinds of definitions. name, value
#define MEMSCOPE_DEFINITION_KINDS(X) \
    X(STRING, 1)                     \
    X(FRAME, 2)                      \
    X(STACK, 3)

// Kinds of events. name, value, meaning of the fields beyond ts, tid, step, device, pool and the stacks
#define MEMSCOPE_EVENT_KINDS(X)                                                                                        \
    X(MALLOC, 16,                                                                                                      \
      "ptr, size: the block; used, total: the pool's allocated and reserved bytes after it; attr: the driver's flag "  \
      "word, for HAL in the layout of halMemAlloc also when halMemCreate was called; name: function, for a driver; "   \
      "aux: of a pool of torch's on a card, stream_word() of the stream that it was allocated for")                    \
    X(FREE, 17, "ptr; size: as the allocator said, 0 when it did not; used, total: as for MALLOC")                     \
    X(SEGMENT_ALLOC, 18, "ptr, size: a driver segment of the pool")                                                    \
    X(SEGMENT_FREE, 19, "ptr, size")                                                                                   \
    X(ACCESS, 20,                                                                                                      \
      "ptr, size: of the tensor as the operator sees it, elements times the size of one; used, total: address and "    \
      "bytes of the storage that it is a view of, where known; aux: 0 unknown, 1 read, 2 write, and stream_word() of " \
      "the stream on which it happens; name: operator; attr: string, dtype and shape")                                 \
    X(OP_START, 21,                                                                                                    \
      "name: operator; aux: framework (0 ATEN, 1 ATB), and stream_word() of the stream it is launched on; attr: "      \
      "string, path")                                                                                                  \
    X(OP_END, 22, "as OP_START")                                                                                       \
    X(KERNEL_LAUNCH, 23,                                                                                               \
      "name: kernel; ptr: stream id; attr: task id; aux: framework (0 runtime, 1 ATB: attr is a string, its path)")    \
    X(KERNEL_START, 24,                                                                                                \
      "as KERNEL_LAUNCH; ts is device time converted to the host clock when flag DEVICE_TIME is set")                  \
    X(KERNEL_END, 25, "as KERNEL_START")                                                                               \
    X(MARK, 26,                                                                                                        \
      "name: text, in an mstx domain `domain: text`; ptr: stream; attr: string, domain; device: the thread's; aux: 1 " \
      "where the program asks what is alive (msmemscope.mark)")                                                        \
    X(RANGE_START, 27, "name: as MARK; ptr: stream; attr: range id; aux: 1 when the range is a step")                  \
    X(RANGE_END, 28, "attr: range id; aux: as RANGE_START")                                                            \
    X(STEP, 29, "step, attr: number of the step that now begins; aux: StepSource; stack_py: who advanced it")          \
    X(COLLECTIVE, 30,                                                                                                  \
      "a collective operation of torch has been started. name: operator; ptr: string, name of the process group; "     \
      "attr: the backend's sequence number, the same on all ranks of the group, 0 unknown; aux: ranks in the group")   \
    X(LABEL_PUSH, 31,                                                                                                  \
      "name: label, of what its thread allocates from now on; aux: level, 1 component, 2 process, 3 and 4 details, 5 " \
      "the program's own")                                                                                             \
    X(LABEL_POP, 32, "as LABEL_PUSH: takes it back")                                                                   \
    X(LABEL_ADDR, 33,                                                                                                  \
      "name: label; aux: level, as LABEL_PUSH, 5 to 7 the program's own; ptr: address inside the labelled block")      \
    X(USAGE, 34, "size: RSS of the process; used, total: of the device; ptr: process's bytes on the device")           \
    X(SNAPSHOT, 35,                                                                                                    \
      "name; used, total: allocated, reserved; ptr, size: their peaks; attr: free device memory; aux: all of the "     \
      "device's memory in KiB, 0 when it is not known")                                                                \
    X(OOM, 36,                                                                                                         \
      "a request that failed. size: request; attr: error code; name: function; ptr: HAL's flag word, as for MALLOC; "  \
      "used, total: as for MALLOC, for the driver (HAL, CUDA_DRIVER) of the whole device; of a CPU tensor total: "     \
      "RLIMIT_AS, -1 unlimited; aux: 0 (1 and 2, blocks alive then, are derived by readers)")                          \
    X(WATCH, 37,                                                                                                       \
      "ptr, size: a watched block; attr: checksum of its content; name: operator or kernel beside which it was "       \
      "looked at; used, total: first byte that changed since the look before, counted from ptr, and bytes from it to " \
      "the last (-1: none did); aux: WatchMoment + 8 * place (0 to 31, tells blocks apart that are watched together) " \
      "+ 256 * WatchBeside + 1024 * how often that was seen. BEGAN, ENDED: name: of the watch; BEGAN: used: number "   \
      "of "                                                                                                            \
      "the output, total: 1 by --watch, 0 by the program; ENDED: total: WatchEnd")                                     \
    X(CALL, 38,                                                                                                        \
      "a call that has ended at ts. name: of a FUNCTION a frame, else a text; attr: its start, 0: before anybody "     \
      "looked; aux: CallKind; flag SYNTHETIC: it goes on, and nobody looks any more. RANGE_BEGUN: one begins at ts, "  \
      "which a RANGE with that attr ends")                                                                             \
    X(SYSTEM, 39, "aux: SystemEvent; START_TRACE: device, used and total of the thread's card, where it has one")      \
    X(META, 40, "name: key, attr: value (strings); the newest value of a key holds")                                   \
    X(GAP, 41,                                                                                                         \
      "size: events lost; aux: their kind; ptr, attr: ring offsets between which they are missing; name: why")         \
    X(RESERVE, 42, "ptr, size: an address range set aside in the driver; no memory is behind it yet")                  \
    X(UNRESERVE, 43, "ptr: the range")                                                                                 \
    X(MAP, 44, "ptr, size: addresses that now lead to memory; attr: its handle, the ptr of a MALLOC with flag HANDLE") \
    X(UNMAP, 45, "ptr")                                                                                                \
    X(SNAPSHOT_SEGMENT, 46,                                                                                            \
      "of the SNAPSHOT of its name before it on its thread. ptr, size: a segment of the pool; used: bytes of it "      \
      "given "                                                                                                         \
      "out; total: of the largest free block in it; attr: its stream; aux: number of its blocks")                      \
    X(SNAPSHOT_BLOCK, 47,                                                                                              \
      "of the SNAPSHOT_SEGMENT whose address is attr. ptr, size: a block; used: bytes that were asked for; aux: "      \
      "BlockState; name: as of the SNAPSHOT")

#define MEMSCOPE_POOLS(X) \
    X(NONE, 0)            \
    X(HAL, 1)             \
    X(PTA, 2)             \
    X(PTA_WORKSPACE, 3)   \
    X(MINDSPORE, 4)       \
    X(ATB, 5)             \
    X(HOST, 6)            \
    X(CUDA, 7)            \
    X(CUDA_DRIVER, 8)

#define MEMSCOPE_DEVICE_TYPES(X) \
    X(NONE, 0)                   \
    X(CPU, 1)                    \
    X(NPU, 2)                    \
    X(CUDA, 3)

// Bits of RecordHeader::flags on events.
#define MEMSCOPE_FLAGS(X)                                                                                              \
    X(SYNTHETIC, 1)   /* made by us: the FREE of a block that was alive at the end */                                  \
    X(PINNED, 2)      /* page-locked host memory */                                                                    \
    X(SHADOW, 4)      /* happened while recording was off; ts is its true time */                                      \
    X(DEVICE_TIME, 8) /* ts was converted from a device clock */                                                       \
    X(STACK_LOST, 16) /* a stack was wanted, and is missing or shortened */                                            \
    X(HANDLE, 32)     /* ptr is a handle of physical memory (halMemCreate), no address; an ACCESS: see kLooseAccess */ \
    X(FORWARD_STACK, 64) /* stack_py is of the forward pass: where the node was made that is evaluated */              \
    X(BACKWARD, 128) /* OP_START, OP_END, ACCESS: autograd runs the operator, on its own or inside one of its nodes */

#define MEMSCOPE_STEP_SOURCES(X) \
    X(API, 0)                    \
    X(MSTX, 1)                   \
    X(ENGINE, 2)                 \
    X(OPTIMIZER, 3)

#define MEMSCOPE_SYSTEM_EVENTS(X) \
    X(START_TRACE, 0)             \
    X(STOP_TRACE, 1)              \
    X(ACL_INIT, 2)                \
    X(ACL_FINI, 3)

// What a pool says of a block: free, given out, or given back and still waited for by a stream.
#define MEMSCOPE_BLOCK_STATES(X) \
    X(FREE, 0)                   \
    X(ALLOCATED, 1)              \
    X(PENDING_FREE, 2)

// Whose call it was: a Python function (name is a frame, its line the first of the function), a function written in C,
// a torch module, or a range that the program names itself, whose beginning is told too: blocks have it.
#define MEMSCOPE_CALL_KINDS(X) \
    X(FUNCTION, 0)             \
    X(BUILTIN, 1)              \
    X(MODULE, 2)               \
    X(RANGE, 3)                \
    X(RANGE_BEGUN, 4)

// PYTHON_ENTRY: a Python frame that native code called, so that a new loop of the interpreter begins with it. Told
// apart only where native stacks are taken too, which are merged by it.
#define MEMSCOPE_FRAME_KINDS(X) \
    X(PYTHON, 0)                \
    X(NATIVE, 1)                \
    X(PYTHON_ENTRY, 2)
#define MEMSCOPE_WATCH_MOMENTS(X) \
    X(BEGAN, 0)                   \
    X(BEFORE, 1)                  \
    X(AFTER, 2)                   \
    X(ENDED, 3)

// What the operator is beside which a watched block was looked at.
#define MEMSCOPE_WATCH_BESIDE(X) \
    X(OPERATOR, 0)               \
    X(ATB, 1)                    \
    X(KERNEL, 2)                 \
    X(ATB_KERNEL, 3)

// Why a block is watched no more: its program or --watch said so, it was looked at as often as asked, it was given
// back, its memory belongs to another block, it cannot be read, its device is selected no more.
#define MEMSCOPE_WATCH_ENDS(X) \
    X(REMOVED, 0)              \
    X(FINISHED, 1)             \
    X(DUMPED, 2)               \
    X(FREED, 3)                \
    X(REUSED, 4)               \
    X(UNREADABLE, 5)           \
    X(UNSELECTED, 6)

// Fields of EventRecord after its header, in memory order. type, name
#define MEMSCOPE_EVENT_FIELDS(X) \
    X(u64, ts)                   \
    X(u64, ptr)                  \
    X(i64, size)                 \
    X(i64, used)                 \
    X(i64, total)                \
    X(u64, name)                 \
    X(u64, stack_py)             \
    X(u64, stack_c)              \
    X(u64, attr)                 \
    X(u32, tid)                  \
    X(u32, step)                 \
    X(u32, aux)                  \
    X(i16, device)               \
    X(u8, device_type)           \
    X(u8, pool)

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

enum class Kind : u8 {
    NONE = 0,
#define X(name, value, ...) name = value,
    MEMSCOPE_DEFINITION_KINDS(X) MEMSCOPE_EVENT_KINDS(X)
#undef X
};
inline constexpr u8 kFirstEventKind = static_cast<u8>(Kind::MALLOC);
inline constexpr u8 kLastEventKind = static_cast<u8>(Kind::SNAPSHOT_BLOCK);
inline constexpr std::size_t kKindSlots = 64;  // one counter per kind in the ring header

#define X(name, value) name = value,
enum class Pool : u8 { MEMSCOPE_POOLS(X) };
enum class DeviceType : u8 { MEMSCOPE_DEVICE_TYPES(X) };
enum class Flag : u8 { MEMSCOPE_FLAGS(X) };
enum class StepSource : u32 { MEMSCOPE_STEP_SOURCES(X) };
enum class SystemEvent : u32 { MEMSCOPE_SYSTEM_EVENTS(X) };
enum class CallKind : u32 { MEMSCOPE_CALL_KINDS(X) };
enum class BlockState : u32 { MEMSCOPE_BLOCK_STATES(X) };
enum class FrameKind : u32 { MEMSCOPE_FRAME_KINDS(X) };
enum class WatchMoment : u32 { MEMSCOPE_WATCH_MOMENTS(X) };
enum class WatchEnd : u32 { MEMSCOPE_WATCH_ENDS(X) };
enum class WatchBeside : u32 { MEMSCOPE_WATCH_BESIDE(X) };
#undef X

// An ACCESS with this flag (HANDLE, which means nothing else there: no bit is left) may touch more of its storage
// behind ptr + size, or touch it after its operator has ended.
inline constexpr u8 kLooseAccess = static_cast<u8>(Flag::HANDLE);

// MALLOC, OP_START, OP_END and ACCESS say in the upper 24 bits of aux on which stream of their card: 0 where nobody
// told (always before that was recorded, and on the host), else one more than torch's number of it. That is 0 for the
// default stream and small for those that torch makes; a stream that the program made itself has the place of its
// handle there, of which 23 bits are kept, mixed.
inline constexpr u32 kStreamShift = 8;
inline constexpr u32 kLowBits = (1u << kStreamShift) - 1;  // of aux, without the stream
inline constexpr u32 kNoStream = 0;
inline constexpr u32 kForeignStreams = 1u << 23;  // from here on: of the program's own making

// Of one of torch's streams, as stream_of() gives it back.
constexpr u32 told_stream(i64 id) noexcept;
constexpr u32 stream_word(u32 told) noexcept { return told << kStreamShift; }
constexpr u32 stream_of(u32 aux) noexcept { return aux >> kStreamShift; }

inline constexpr i64 kUnknown = -1;         // used and total when the source does not know them
inline constexpr i16 kNoDevice = -1;        // device index of a record that belongs to no device
inline constexpr u32 kMaxTextBytes = 4096;  // longer strings are cut here
inline constexpr u32 kMaxFrames = 1000;     // deepest stack (upstream's limit)

struct RecordHeader {
    u32 length;   // bytes of the record with this header, a multiple of 8; 0 = not committed yet
    u8 kind;      // Kind
    u8 flags;     // Flag bits
    u16 version;  // kRecordVersion
};
static_assert(sizeof(RecordHeader) == 8);

struct EventRecord {
    RecordHeader header;
#define X(type, name) type name;
    MEMSCOPE_EVENT_FIELDS(X)
#undef X
};
static_assert(sizeof(EventRecord) == 96 && offsetof(EventRecord, pool) == 95);

struct StringRecord {  // followed by `bytes` bytes of UTF-8 and zeros up to a multiple of 8
    RecordHeader header;
    u64 id;
    u32 bytes;
    u32 reserved;
};
static_assert(sizeof(StringRecord) == 24);

struct FrameRecord {
    RecordHeader header;
    u64 id;
    u64 file;      // string id; a native frame: the object's path
    u64 function;  // string id; a native frame: of the empty text, the agent puts the name in its place
    u32 line;      // a native frame: offset within the object
    u32 kind;      // FrameKind
};
static_assert(sizeof(FrameRecord) == 40);

struct StackRecord {  // followed by `count` u64 frame ids, innermost frame first
    RecordHeader header;
    u64 id;
    u32 count;
    u32 kind;  // FrameKind of its frames
};
static_assert(sizeof(StackRecord) == 24);

inline constexpr u32 kMaxRecordBytes = static_cast<u32>(sizeof(StackRecord)) + kMaxFrames * 8;

// The 64-bit mixer behind every id (the finaliser of SplitMix64, Steele et al. 2014) ...
constexpr u64 mix64(u64 x) noexcept {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
// ... and how ids are built: order matters, and an id is never 0.
constexpr u64 combine64(u64 seed, u64 value) noexcept { return mix64(seed * 0x9E3779B97F4A7C15ull + value + 1); }
constexpr u64 nonzero(u64 id) noexcept { return id != 0 ? id : 1; }

constexpr u32 told_stream(i64 id) noexcept {
    if (id >= 0 && id < static_cast<i64>(kForeignStreams) - 1) return static_cast<u32>(id) + 1;
    return kForeignStreams | static_cast<u32>(mix64(static_cast<u64>(id)) & (kForeignStreams - 1));
}

inline u64 text_id(const char* text, std::size_t bytes) noexcept {
    u64 hash = combine64(static_cast<u64>(Kind::STRING), bytes);
    std::size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        u64 word = 0;
        __builtin_memcpy(&word, text + at, 8);
        hash = combine64(hash, word);
    }
    if (at < bytes) {
        u64 word = 0;
        __builtin_memcpy(&word, text + at, bytes - at);
        hash = combine64(hash, word);
    }
    return nonzero(hash);
}

// variant: 0, or for a native frame what tells builds of one object apart (stack/object_headers.h). Its name is not
// part of the id: it is found later, maybe not at all.
constexpr u64 frame_id(u64 file, u64 function, u32 line, u64 variant) noexcept {
    return nonzero(combine64(combine64(combine64(static_cast<u64>(Kind::FRAME) + variant, file), function), line));
}

// variant: 0, or what tells apart stacks of equal frames that are of other kinds.
inline u64 stack_id(const u64* frame_ids, std::size_t count, u64 variant) noexcept {
    u64 id = combine64(static_cast<u64>(Kind::STACK) + variant, count);
    for (std::size_t i = 0; i < count; ++i) id = combine64(id, frame_ids[i]);
    return nonzero(id);
}

}  // namespace memscope
